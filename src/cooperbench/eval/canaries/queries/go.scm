; Tests: functions, and methods of a suite.
((function_declaration
  name: (identifier) @test.name
  parameters: (parameter_list (parameter_declaration
    type: (pointer_type (qualified_type name: (type_identifier) @test.type))))) @test
  (#match? @test.name "^(Test|Fuzz)")
  (#match? @test.type "^[TF]$"))
((method_declaration
  name: (field_identifier) @test.name
  parameters: (parameter_list) @test.parameters) @test
  (#match? @test.name "^Test")
  (#eq? @test.parameters "()"))

; Literals, which the values of assertions consist of.
(interpreted_string_literal_content) @literal.text
(raw_string_literal_content) @literal.text
(int_literal) @literal.number
(float_literal) @literal.number
[(true) (false)] @literal.truth
[(interpreted_string_literal) (raw_string_literal)] @literal.quoted
(rune_literal) @literal.rune

; if got != want { t.Errorf(…) }
(if_statement
  initializer: (_)? @initializer
  condition: (_) @condition
  consequence: (block) @body) @assertion

; assert.Equal(t, want, got), Expect(got).To(Equal(want)), cmp.Diff(want, got)
(call_expression
  function: (selector_expression operand: (_) @object field: (field_identifier) @method)
  arguments: (argument_list) @arguments) @call

; Tables of values.
(for_statement (range_clause left: (expression_list) @range.names right: (_) @range.values)) @range
(type_spec name: (type_identifier) @type.name type: (struct_type) @type.fields)

; Variables.
(short_var_declaration left: (expression_list) @local.names right: (expression_list) @local.values)
(var_spec name: (identifier) @local.names value: (expression_list) @local.values)
(var_spec name: (identifier) @declared)
(const_spec name: (identifier) @local.names value: (expression_list) @local.values)
(short_var_declaration left: (expression_list (identifier) @declared))
(range_clause left: (expression_list (identifier) @declared))

; Calls of functions that may hold assertions.
(expression_statement
  (call_expression function: [(identifier) @helper (selector_expression field: (_) @helper)]
    arguments: (argument_list) @arguments)) @helper.call
(function_declaration name: (identifier) @function.name body: (_) @function.body) @function
