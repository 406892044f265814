"""What test frameworks printed, shortened; go's is written after its documentation."""

from __future__ import annotations

PYTEST_FAILURES = """\
============================= test session starts ==============================
platform linux -- Python 3.11.7, pytest-9.2.0, pluggy-1.7.0
collected 9 items

test_a.py .FFsxXEF.                                                      [100%]

==================================== ERRORS ====================================
__________________________ ERROR at setup of test_err __________________________

    @pytest.fixture
>   def broken(): raise RuntimeError("no db")
E   RuntimeError: no db

test_a.py:14: RuntimeError
=================================== FAILURES ===================================
______________________________ TestC.test_p[a b] _______________________________

>   def test_p(self, v): assert v == "c"
E   AssertionError: assert 'a b' == 'c'

test_a.py:18: AssertionError
___________________________________ test_key ___________________________________

>   def test_key(): {}["a"]
E   KeyError: 'a'

test_a.py:6: KeyError
=========================== short test summary info ============================
FAILED test_a.py::TestC::test_p[a b] - AssertionError: assert 'a b' == 'c'
FAILED test_a.py::test_key - KeyError: 'a'
ERROR test_a.py::test_err - RuntimeError: no db
==== 3 failed, 2 passed, 1 skipped, 1 xfailed, 1 xpassed, 1 error in 1.02s =====
"""

PYTEST_COLLECTION_ERROR = """\
==================================== ERRORS ====================================
__________________________ ERROR collecting test_b.py __________________________
ImportError while importing test module '/tmp/py/test_b.py'.
Hint: make sure your test modules/packages have valid Python names.
Traceback:
test_b.py:1: in <module>
    import nothere
E   ModuleNotFoundError: No module named 'nothere'
=========================== short test summary info ============================
ERROR test_b.py
!!!!!!!!!!!!!!!!!!!! Interrupted: 1 error during collection !!!!!!!!!!!!!!!!!!!!
=============================== 1 error in 0.92s ===============================
"""

UNITTEST_SUBTESTS = f"""\
EF.sFFx
{"=" * 70}
ERROR: test_err (ut.T.test_err)
{"-" * 70}
Traceback (most recent call last):
  File "/tmp/py/ut.py", line 5, in test_err
    def test_err(self): {{}}["k"]
KeyError: 'k'

{"=" * 70}
FAIL: test_sub (ut.T.test_sub) (i=0)
{"-" * 70}
Traceback (most recent call last):
  File "/tmp/py/ut.py", line 14, in test_sub
    with self.subTest(i=i): self.assertEqual(i, 9)
AssertionError: 0 != 9

{"=" * 70}
FAIL: test_sub (ut.T.test_sub) (i=1)
{"-" * 70}
Traceback (most recent call last):
  File "/tmp/py/ut.py", line 14, in test_sub
    with self.subTest(i=i): self.assertEqual(i, 9)
AssertionError: 1 != 9

{"-" * 70}
Ran 5 tests in 0.001s

FAILED (failures=2, errors=1, skipped=1, expected failures=1)
"""

NODE_TAP = """\
TAP version 13
# Subtest: ok
ok 1 - ok
  ---
  duration_ms: 1.600801
  ...
# Subtest: suite
    # Subtest: inner throws
    not ok 1 - inner throws
      ---
      duration_ms: 0.150472
      failureType: 'testCodeFailure'
      error: "Cannot read properties of null (reading 'x')"
      code: 'ERR_TEST_FAILURE'
      name: 'TypeError'
      ...
    1..1
not ok 2 - suite
  ---
  duration_ms: 0.753277
  type: 'suite'
  failureType: 'subtestsFailed'
  ...
1..2
# tests 7
# suites 1
# pass 2
# fail 2
# cancelled 1
# skipped 1
# todo 1
# duration_ms 211.243167
"""

NODE_SPEC = """\
✔ ok (1.374959ms)
✖ bad one (1.370962ms)
  AssertionError [ERR_ASSERTION]: Expected values to be strictly equal:

  1 !== 2

ℹ tests 7
ℹ suites 1
ℹ pass 2
ℹ fail 3
ℹ cancelled 0
ℹ skipped 1
ℹ todo 1
ℹ duration_ms 250.890113

✖ failing tests:

test at a.test.js:2:23
✖ bad one (1.370962ms)
"""

JEST = """\
FAIL j/a.test.js
  ● math › bad

    expect(received).toBe(expected) // Object.is equality

    Expected: 2
    Received: 1

  ● math › throws

    TypeError: Cannot read properties of null (reading 'x')

PASS j/c.test.js
FAIL j/b.test.js
  ● Test suite failed to run

    Cannot find module './nope' from 'b.test.js'

Test Suites: 2 failed, 1 passed, 3 total
Tests:       2 failed, 1 skipped, 1 todo, 2 passed, 6 total
Snapshots:   0 total
Time:        0.822 s
Ran all test suites.
"""

VITEST = """\
 RUN  v4.1.12 /tmp/v

 ❯ a.test.js (5 tests | 2 failed | 1 skipped | 1 todo) 22ms
     ✓ ok 2ms
     × bad 16ms
 ❯ b.test.js (0 test)

⎯⎯⎯⎯⎯⎯ Failed Suites 1 ⎯⎯⎯⎯⎯⎯⎯

 FAIL  b.test.js [ b.test.js ]
Error: Cannot find module './nope' imported from /tmp/v/b.test.js

⎯⎯⎯⎯⎯⎯⎯ Failed Tests 2 ⎯⎯⎯⎯⎯⎯⎯

 FAIL  a.test.js > math > bad
AssertionError: expected 1 to be 2 // Object.is equality

 Test Files  2 failed | 1 passed (3)
      Tests  2 failed | 2 passed | 1 skipped | 1 todo (6)
   Start at  23:38:36
   Duration  839ms (transform 27ms, setup 0ms, import 44ms, tests 25ms, environment 1ms)
"""

CARGO = """\
     Running unittests src/lib.rs (target/debug/deps/demo-8348ca7a80742723)

running 4 tests
test tests::idx ... FAILED
test tests::ok ... ok

failures:

---- tests::idx stdout ----

thread 'tests::idx' (5377) panicked at src/lib.rs:11:78:
index out of bounds: the len is 0 but the index is 2

failures:
    tests::idx

test result: FAILED. 1 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.21s

error: test failed, to rerun pass `--lib`
   Doc-tests demo

running 1 test
test src/lib.rs - add (line 1) ... ok

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.13s
"""

CARGO_BROKEN = """\
   Compiling demo v0.1.0 (/tmp/rs)
error[E0425]: cannot find value `c` in this scope
 --> src/lib.rs:4:41
  |
4 | pub fn add(a: i32, b: i32) -> i32 { a + c }
  |                                         ^
error: could not compile `demo` (lib test) due to 1 previous error
"""

GO_PLAIN = """\
ok  \texample.com/m/a\t0.012s
ok  \texample.com/m/b\t(cached)
ok  \texample.com/m/c\t0.010s [no tests to run]
?   \texample.com/m/d\t[no test files]
--- FAIL: TestTable (0.00s)
    --- FAIL: TestTable/empty_input (0.00s)
        table_test.go:9: got 1, want 2
--- FAIL: TestOther (0.01s)
    other_test.go:4: no
FAIL
FAIL\texample.com/m/e\t0.020s
# example.com/m/f
f/f.go:3:2: undefined: foo
FAIL\texample.com/m/f [build failed]
FAIL
"""

GO_VERBOSE = """\
=== RUN   TestA
--- PASS: TestA (0.00s)
=== RUN   TestB
=== RUN   TestB/one
=== RUN   TestB/two
    b_test.go:7: no
--- FAIL: TestB (0.00s)
    --- PASS: TestB/one (0.00s)
    --- FAIL: TestB/two (0.00s)
=== RUN   TestC
    c_test.go:3: later
--- SKIP: TestC (0.00s)
FAIL
FAIL\texample.com/m\t0.005s
testing: warning: no tests to run
PASS
ok  \texample.com/m/empty\t0.002s [no tests to run]
"""

GO_PANIC = """\
--- FAIL: TestX (0.00s)
panic: boom [recovered]
\tpanic: boom

goroutine 7 [running]:
FAIL\texample.com/m\t0.008s
FAIL
"""
