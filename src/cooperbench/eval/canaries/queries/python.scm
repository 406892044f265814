; Tests: functions at the top level and methods.
(module (function_definition name: (identifier) @test.name
  (#match? @test.name "^test")) @test)
(module (decorated_definition definition: (function_definition name: (identifier) @test.name
  (#match? @test.name "^test"))) @test)
(class_definition body: (block (function_definition name: (identifier) @test.name
  (#match? @test.name "^test")) @test))
(class_definition body: (block (decorated_definition
  definition: (function_definition name: (identifier) @test.name
  (#match? @test.name "^test"))) @test))

; Literals, which the values of assertions consist of.
(string_content) @literal.text
(integer) @literal.number
(float) @literal.number
[(true) (false)] @literal.truth

; assert condition, message
(assert_statement . (_) @condition . (_)? @message) @assertion

; unittest and assertion functions: two operands, of which one is the expected value.
((call
  function: [(identifier) @method (attribute attribute: (identifier) @method)]
  arguments: (argument_list . (_) @left . (_) @right) @arguments) @assertion
  (#match? @method "^assert(Is|(?!Not)\\w*Equals?)$|^assert_(\\w+_)?(eq|equals?|is|allclose)$")
  (#set! kind "equal"))
((call
  function: [(identifier) @method (attribute attribute: (identifier) @method)]
  arguments: (argument_list . (_) @left . (_) @right) @arguments) @assertion
  (#match? @method "^assert(_in|In|_regex|Regex|_matches|Matches)$")
  (#set! kind "phrase"))

; unittest: methods with an opposite.
((call
  function: (attribute attribute: (identifier) @method)
  arguments: (argument_list . (_)? @left) @arguments) @assertion
  (#match? @method "^assert(True|False|IsNone|IsNotNone|NotIn|IsNot|IsInstance|NotIsInstance|NotEqual|NotRegex|Greater|Less|GreaterEqual|LessEqual)$")
  (#set! kind "opposite"))

; unittest.mock
((call
  function: (attribute object: (_) @object attribute: (identifier) @method)
  arguments: (argument_list) @arguments) @assertion
  (#match? @method "^assert_(called|any_call|awaited)(_once)?(_with)?$|^assert_(not|has)_\\w+$")
  (#set! kind "mock"))

; Exceptions.
((call
  function: [(identifier) @method (attribute attribute: (identifier) @method)]
  arguments: (argument_list . (_) @class) @arguments) @assertion
  (#match? @method "^(raises|assertRaises(Regex|Regexp)?|assertWarns(Regex)?|warns|assert_raises)$")
  (#set! kind "exception"))

; Tables of values.
(decorator (call
  function: (_) @table.function
  arguments: (argument_list . (_) @table.names . (_) @table.rows) @table.arguments)
  (#match? @table.function "parametrize$")) @table
(for_statement left: (_) @table.names right: [(list) (tuple)] @table.rows) @table
(assignment left: (identifier) @local.name right: (_) @local.value) @local

; Calls of functions that may hold assertions.
(expression_statement [
  (call function: [(identifier) @helper (attribute attribute: (identifier) @helper)]
    arguments: (argument_list) @arguments)
  (await (call function: [(identifier) @helper (attribute attribute: (identifier) @helper)]
    arguments: (argument_list) @arguments))
  ]) @helper.call
(function_definition name: (identifier) @function.name body: (_) @function.body) @function

; Blocks in which something has to fail.
((with_statement (with_clause) @raises.clause body: (_) @raises.body)
  (#match? @raises.clause "[rR]aises|AssertionError"))
