"""Templates as users write them."""

import unittest
from types import SimpleNamespace

from stencil import Environment, TemplateSyntaxError


class Rendering(unittest.TestCase):
    def setUp(self):
        self.env = Environment()

    def test_text_is_kept(self):
        self.assertEqual(self.env.render("a { b } c\n"), "a { b } c\n")

    def test_dotted_names(self):
        user = {"name": "Ada", "tags": ["x", "y"]}
        place = SimpleNamespace(city="Ulm")
        text = self.env.render("{{ user.name }}/{{ user.tags.1 }}/{{ place.city }}", user=user, place=place)
        self.assertEqual(text, "Ada/y/Ulm")

    def test_missing_names_print_nothing(self):
        self.assertEqual(self.env.render("[{{ a }}{{ b.c }}{{ d.5 }}]", b={}, d=[1]), "[]")

    def test_missing_equals_none(self):
        self.assertEqual(self.env.render("{% if a == none %}yes{% endif %}"), "yes")

    def test_if_elif_else(self):
        source = "{% if n < 0 %}neg{% elif n == 0 %}zero{% else %}pos{% endif %}"
        self.assertEqual([self.env.render(source, n=n) for n in (-1, 0, 1)], ["neg", "zero", "pos"])

    def test_logic(self):
        source = "{% if not a and (b or c in d) %}y{% else %}n{% endif %}"
        self.assertEqual(self.env.render(source, a=False, b=0, c=1, d=[1]), "y")
        self.assertEqual(self.env.render(source, a=False, b=0, c=2, d=[1]), "n")

    def test_for_has_a_scope_of_its_own(self):
        source = "{% for x in xs %}{% set y = x %}{{ y }},{% endfor %}{{ x }}{{ y }}"
        self.assertEqual(self.env.render(source, xs=[1, 2]), "1,2,")

    def test_for_over_nothing(self):
        self.assertEqual(self.env.render("{% for x in xs %}{{ x }}{% endfor %}."), ".")

    def test_comments_are_dropped(self):
        self.assertEqual(self.env.render("a{# {{ b }} #}c"), "ac")

    def test_environment_variables(self):
        env = Environment(variables={"site": "here", "n": 1})
        self.assertEqual(env.render("{{ site }}{{ n }}", n=2), "here2")


class SyntaxErrors(unittest.TestCase):
    def assert_error(self, source, part, line):
        with self.assertRaises(TemplateSyntaxError) as caught:
            Environment().template(source)
        self.assertIn(part, str(caught.exception))
        self.assertEqual(caught.exception.line, line)

    def test_unclosed(self):
        self.assert_error("a\n{{ b", "never closed", 2)
        self.assert_error("\n\n{% if a %}", "never ended", 3)

    def test_unknown_tag(self):
        self.assert_error("{% frob %}", "'frob'", 1)

    def test_bad_expression(self):
        self.assert_error("{{ a b }}", "unexpected 'b'", 1)
        self.assert_error("{{ }}", "missing", 1)
        self.assert_error("{% for in x %}", "for name in", 1)


if __name__ == "__main__":
    unittest.main()
