; Tests: calls of it and test with a title and a function, in any nesting.
((expression_statement [
  (call_expression function: (_) @test.function arguments: (arguments . (_) @test.name . (_)) @test.arguments)
  (await_expression
    (call_expression function: (_) @test.function arguments: (arguments . (_) @test.name . (_)) @test.arguments))
  ]) @test
  (#match? @test.function "^([A-Za-z_$][A-Za-z0-9_$]*\\.)?(it|test|specify)(\\.(each|only|concurrent|serial|sequential|failing)\\b|[(`]|$)"))

; Literals, which the values of assertions consist of.
(string_fragment) @literal.text
(regex_pattern) @literal.text
(number) @literal.number
[(true) (false)] @literal.truth

; jest, vitest, chai: expect(subject).matcher(expected)
((call_expression
  function: (member_expression object: (_) @chain property: (property_identifier) @matcher)
  arguments: (arguments) @arguments) @assertion
  (#match? @chain "^expect(\\.soft)?[.(<]")
  (#set! kind "expect"))
; chai: expect(subject).to.be.true
((member_expression object: (_) @chain property: (property_identifier) @matcher) @assertion
  (#match? @chain "^expect\\(")
  (#match? @chain "\\.(to|be|been|is|not|have)$")
  (#match? @matcher "^(true|false|null|undefined|empty|ok|exist|NaN|called|calledOnce|rejected|fulfilled)$")
  (#set! kind "property"))

; node:assert, chai's assert, ava, tap: assert.equal(actual, expected, message)
((call_expression
  function: (member_expression object: (_) @object property: (property_identifier) @matcher)
  arguments: (arguments) @arguments) @assertion
  (#match? @object "^(assert|t|chai\\.assert)(\\.strict)?$")
  (#set! kind "assert"))
((call_expression function: (identifier) @matcher arguments: (arguments) @arguments) @assertion
  (#match? @matcher "^(assert|ok|equal|strictEqual|deepEqual|deepStrictEqual|notEqual|notStrictEqual|notDeepStrictEqual|throws|rejects|match)$")
  (#set! kind "assert"))

; if (actual !== expected) throw …
((if_statement
  condition: (parenthesized_expression (binary_expression) @condition)
  consequence: (_) @body) @assertion
  (#match? @body "throw |fail\\(")
  (#set! kind "if"))

; Tables of values.
(call_expression
  function: (call_expression
    function: (member_expression property: (property_identifier) @table.each)
    arguments: (arguments . (array) @table.rows))
  arguments: (arguments [
    (arrow_function parameters: (_) @table.names)
    (arrow_function parameter: (_) @table.names)
    (function_expression parameters: (_) @table.names)])
  (#eq? @table.each "each")) @table
(call_expression
  function: (call_expression
    function: (member_expression property: (property_identifier) @table.each)
    arguments: (template_string) @table.template)
  arguments: (arguments [
    (arrow_function parameters: (_) @table.names)
    (function_expression parameters: (_) @table.names)])
  (#eq? @table.each "each")) @table
(for_in_statement left: (_) @table.names right: (array) @table.rows) @table
(variable_declarator name: (identifier) @local.name value: (_) @local.value) @local

; Calls of functions that may hold assertions.
(expression_statement [
  (call_expression function: [(identifier) @helper (member_expression property: (_) @helper)]
    arguments: (arguments) @arguments)
  (await_expression
    (call_expression function: [(identifier) @helper (member_expression property: (_) @helper)]
      arguments: (arguments) @arguments))
  ]) @helper.call
(function_declaration name: (identifier) @function.name body: (_) @function.body) @function
(variable_declarator name: (identifier) @function.name
  value: [(arrow_function body: (_) @function.body) (function_expression body: (_) @function.body)]) @function
