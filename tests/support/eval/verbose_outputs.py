"""Outputs that name the tests, shortened. Those of cargo nextest are written after its documentation."""

from __future__ import annotations

PYTEST = r"""
============================= test session starts ==============================
collecting ... collected 19 items / 1 error / 1 skipped

test_a.py::test_ok PASSED                                                [  5%]
test_a.py::test_bad FAILED                                               [ 10%]
test_a.py::test_skip SKIPPED (no [net] - PASSED here)                    [ 15%]
test_a.py::test_xfail XFAIL (later)                                      [ 21%]
test_a.py::test_xpass XPASS                                              [ 26%]
test_a.py::test_setup ERROR                                              [ 36%]
test_a.py::test_teardown PASSED                                          [ 42%]
test_a.py::test_teardown ERROR                                           [ 42%]
test_a.py::TestC::test_p[a b] PASSED                                     [ 47%]
test_a.py::TestC::test_p[a - b] FAILED                                   [ 57%]
test_a.py::TestC::test_p[x::y] PASSED                                    [ 63%]
test_a.py::TestC::test_p[a PASSED] SKIPPED (x)                           [ 68%]
test_a.py::TestC::test_p[[ 12%]] PASSED                                  [ 84%]
test_a.py::TestC::test_base <- base.py PASSED                            [ 94%]
test_a.py::U::test_sub SUBFAILED(i=0)                                    [100%]
test_a.py::U::test_sub PASSED                                            [100%]
docs/use.md::use.md PASSED                                               [100%]

----------------------------- Captured stdout call -----------------------------
test_a.py::test_ok and more FAILED
std::vector FAILED
=========================== short test summary info ============================
SKIPPED [1] test_c.py:2: whole
FAILED test_a.py::test_bad - assert [1] - 2
FAILED test_a.py::TestC::test_p[a - b] - AssertionError: assert 'a - b' != 'a...
ERROR test_b.py
ERROR test_a.py::test_setup - RuntimeError: no db
"""

PYTEST_XDIST = """
test_a.py::test_ok 
[gw1] [  5%] SKIPPED test_a.py::test_skip 
[gw0] [ 10%] PASSED test_a.py::test_ok 
[gw0] [ 21%] FAILED test_a.py::test_p[a - b] 
[gw0] [ 94%] PASSED test_a.py::C::test_base <- base.py 
[gw0] [100%] SUBFAILED[two words](i='0') test_a.py::U::test_sub 
[gw0] [100%] PASSED test_a.py::U::test_sub 
"""  # noqa: W291

PYTEST_SUMMARY = """
PASSED test_a.py::test_ok
XFAIL test_a.py::test_xfail - later
SKIPPED test_a.py::test_skip - no net
SUBFAILED[two words](i=0) test_a.py::U::test_sub[a b] - AssertionError: 0 != 9
ERROR test_b.py - ImportError while importing test module '/x/test_b...
ERROR    root:test_a.py:12 logged
ERROR: file or directory not found: x.py
"""

UNITTEST = f"""
test_k (ut.K.test_k) ... skipped 'why ... ok'
setUpClass (ut.S) ... ERROR
test_doc (ut.T.test_doc)
What it ... does. ... ok
test_doc_bad (ut.T.test_doc_bad)
Fails. ... FAIL
test_old (ut.T) ... ok
test_prints (ut.T.test_prints) ... hello
ERROR:root:logged
ok
test_skip (ut.T.test_skip) ... skipped "it's no"
test_sub (ut.T.test_sub) ... 
  test_sub (ut.T.test_sub) (i=0) ... FAIL
test_sub_skip (ut.T.test_sub_skip) ... 
  test_sub_skip (ut.T.test_sub_skip) [m] (i=0) ... skipped 'q'
test_xf (ut.T.test_xf) ... expected failure
test_xp (ut.T.test_xp) ... unexpected success

{"=" * 70}
ERROR: setUpClass (ut.S)
{"-" * 70}
"""  # noqa: W291

UNITTEST_QUIET = f"""
..F
{"=" * 70}
FAIL: test_sub (ut.T.test_sub) (i=0)
{"-" * 70}
AssertionError: 0 != 1

{"=" * 70}
ERROR: test_old (ut.T)
It does.
{"-" * 70}
KeyError: 'k'

{"=" * 70}
UNEXPECTED SUCCESS: test_xp (ut.T.test_xp)
{"-" * 70}
Ran 3 tests in 0.001s
"""

GO = """
# example.com/m/c [example.com/m/c.test]
c/c_test.go:3:28: undefined: undefined
=== RUN   TestA
--- PASS: TestA (0.00s)
=== RUN   TestB
=== RUN   TestB/one
    a_test.go:4: no
--- FAIL: TestB (0.00s)
    --- PASS: TestB/one (0.00s)
    --- FAIL: TestB/two_words (0.00s)
=== RUN   TestC
    a_test.go:5: later
--- SKIP: TestC (0.00s)
FAIL
FAIL\texample.com/m/a\t0.005s
=== RUN   TestA
--- PASS: TestA (0.00s)
PASS
ok  \texample.com/m/b\t(cached)
FAIL\texample.com/m/c [build failed]
?   \texample.com/m/d\t[no test files]
=== RUN   TestKilled
--- PASS: TestKilled (0.00s)
"""

CARGO = """
     Running unittests src/lib.rs (target/debug/deps/my_demo-0320e72de08a9e99)

running 5 tests
test tests::later ... ignored
test tests::later_reason ... ignored, slow
test tests::ok ... ok
test tests::idx ... FAILED
test tests::panics - should panic ... ok
test tests::slow has been running for over 60 seconds

---- tests::idx stdout ----
thread 'tests::idx' (11344) panicked at src/lib.rs:8:104:

     Running unittests src/main.rs (target/debug/deps/my_demo-3f9189e7466ac850)
test tests::ok ... ok
     Running tests/it.rs (target/debug/deps/it-86b4f39eda485cee)
test ok ... ok
     Running target/debug/deps/old_cargo-86b4f39eda485cee
test ok ... ok
   Doc-tests my_demo
test src/lib.rs - add (line 1) ... ok
"""

NEXTEST = """
    Starting 4 tests across 2 binaries (1 test skipped)
        PASS [   0.004s] my-demo tests::ok
        PASS [   0.004s] ( 2/10) my-demo::it ok
        FAIL [   0.005s] my-demo tests::idx
     SIGABRT [   0.105s] my-demo tests::aborts
        SKIP [         ] my-demo tests::later
        SLOW [> 60.000s] my-demo tests::slow
     Summary [   0.012s] 4 tests run: 2 passed, 2 failed, 1 skipped
        FAIL [   0.005s] my-demo tests::idx
"""

JEST = """
  console.log
    ✓ printed before

FAIL j/a.test.js (5.1 s)
  ✓ top (19 ms)
  math
    ✓ ok
    ✕ bad (3 ms)
    ○ skipped later
    ✎ todo write it
    deep › er
      ✓ a (1.5 s)
      ✕ bad too (1 ms)
  other
    ✓ ok

  ● math › bad

    expect(received).toBe(expected) // Object.is equality

  ● math › deep › er › bad too

    x

FAIL j/b.test.js
  ● Test suite failed to run

    Cannot find module './nope' from 'j/b.test.js'

 PASS  j/sub/[id].test.js
  ✓ top (1 ms)

Test Suites: 2 failed, 1 passed, 3 total
"""

JEST_QUIET = """
FAIL j/a.test.js
  ● Console

    console.log
      hello

  ● math › bad

    expect(received).toBe(expected) // Object.is equality

PASS j/c.test.js
"""

VITEST = """
 RUN  v4.1.12 /x

stdout | v/a.test.js > top
hello

 ✓ v/a.test.js > top 3ms
 × v/a.test.js > math > bad 5ms
   → expected 1 to be 2 // Object.is equality
 ↓ v/a.test.js > math > later
 □ v/a.test.js > math > write it
 ✓ v/a.test.js > math > deep > a > b 3ms 31ms
 ✓ v/a.test.js > retried 1ms (retry x1)
 ✓ v/c.test.js (2 tests) 5ms

 FAIL  v/b.test.js [ v/b.test.js ]
Error: Cannot find module './nope' imported from /x/v/b.test.js

 FAIL  v/a.test.js > math > quiet [ x ]
AssertionError: expected 1 to be 2 // Object.is equality
"""

_NODE_SUMMARY = "".join(
    f"{{mark}} {word} 1\n"
    for word in ("tests", "suites", "pass", "fail", "cancelled", "skipped", "todo", "duration_ms")
)

NODE_SPEC_WITHOUT_SUMMARY = """
printed
✔ ok (1.892883ms)
✖ bad one (1.236166ms)
  AssertionError [ERR_ASSERTION]: Expected values to be strictly equal:

﹣ skipped (1.592651ms) # SKIP
﹣ old skipped # SKIP
✖ todo it (0.104986ms) # TODO
✔ todo ok (0.161233ms) # soon
▶ suite
  ✖ inner throws (0.272818ms)
    TypeError [Error]: Cannot read properties of null (reading 'x')
  ▶ deep # x
    ✔ name (3 ms) # SKIP (0.199664ms)
  ✔ deep # x (0.325008ms)
  ✔ inner ok (0.151339ms)
✖ suite (1.068589ms)
"""
NODE_SPEC = f"""{NODE_SPEC_WITHOUT_SUMMARY}{_NODE_SUMMARY.format(mark="ℹ")}
✖ failing tests:

test at a.test.mjs:4:1
✖ bad one (1.236166ms)

test at a.test.mjs:11:3
✖ inner throws (0.272818ms)
"""

NODE_TAP = rf"""TAP version 13
# printed
# Subtest: ok
ok 1 - ok
# Subtest: bad one
not ok 2 - bad one
# Subtest: skipped
ok 3 - skipped # SKIP
ok 4 - old skipped # SKIP no net
not ok 5 - todo it # TODO
ok 6 - todo ok # TODO soon
# Subtest: suite
    # Subtest: inner throws
    not ok 1 - inner throws
      ---
      name: 'TypeError'
      ...
    # Subtest: deep \# x
        # Subtest: name (3 ms) \# SKIP
        ok 1 - name (3 ms) \# SKIP
        1..1
    ok 2 - deep \# x
    # Subtest: inner ok
    ok 3 - inner ok
    1..3
not ok 7 - suite
1..7
{_NODE_SUMMARY.format(mark="#")}"""
MOCHA = """
  ✔ at the top
  area
    ✔ of a small one
    ✔ is slow (91ms)
    ✔ 1) numbered (5ms)
    1) throws
    2) times out
  hello
✔ x
    ✔ prints
    nested › group
      3) fails
      ✔ of a big one
      - is skipped
      - is pending
    hooks
      4) "before all" hook for "never runs"

  other
    deep
      ✔ same
      5) same


  7 passing (128ms)
  2 pending
  5 failing

  1) area
       throws:
     TypeError: x is y
      at Context.<anonymous> (test/area.js:16:30)

  2) area
       times out:
     Error: Timeout of 20ms exceeded. For async tests and hooks, ensure "done()" is called; if returning a Promise, ensure it resolves. (/tmp/wt/attlab/mo/test/area.js)

  3) area
       nested › group
         fails:

      AssertionError: expected 2 to equal 3
      + expected - actual

      -2
      +3

      at Context.<anonymous> (test/area.js:6:38)

  4) area
       hooks
         "before all" hook for "never runs":
     Error: no
      at Context.<anonymous> (test/area.js:12:26)

  5) other
       deep
         same:
     Error: a
b
      at Context.<anonymous> (test/area.js:21:99)
"""
MOCHA_DOT = """
  ....!!  hello
✔ x
.!.,,!.!

  7 passing (125ms)
  2 pending
  5 failing

  1) area
       throws:
     TypeError: x is y
      at Context.<anonymous> (test/area.js:16:30)

  2) area
       times out:
     Error: Timeout of 20ms exceeded. For async tests and hooks, ensure "done()" is called; if returning a Promise, ensure it resolves. (/tmp/wt/attlab/mo/test/area.js)

  5) other
       deep
         same:
     Error: a
b
      at Context.<anonymous> (test/area.js:21:99)
"""
