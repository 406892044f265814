; Functions; those with an attribute such as #[test] are tests.
(function_item name: (identifier) @test.name) @test

; Literals, which the values of assertions consist of.
(string_literal (string_content) @literal.text)
(raw_string_literal (string_content) @literal.text)
(integer_literal) @literal.number
(float_literal) @literal.number
(boolean_literal) @literal.truth
(char_literal) @literal.char

; Assertions. Their macros are parsed as calls, see rust.py.
((call_expression
  function: [(identifier) @macro (scoped_identifier name: (identifier) @macro)]
  arguments: (arguments) @arguments) @assertion
  (#match? @macro "^(debug_|prop_)?assert(_[a-z_]*)?$"))

; #[should_panic(expected = "…")]
((attribute_item (attribute
  (identifier) @panic
  arguments: (token_tree (string_literal) @panic.message)?)) @panic.attribute
  (#eq? @panic "should_panic"))

; Tables of values.
(for_expression pattern: (_) @table.names value: (_) @table.rows) @table
(let_declaration pattern: (identifier) @local.name value: (_) @local.value) @local

; Calls of functions that may hold assertions.
(expression_statement
  (call_expression function: [(identifier) @helper (scoped_identifier name: (_) @helper)]
    arguments: (arguments) @arguments)) @helper.call
(function_item name: (identifier) @function.name body: (_) @function.body) @function
