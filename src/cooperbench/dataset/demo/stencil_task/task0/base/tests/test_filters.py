"""The built-in filters."""

import unittest

from stencil import Environment, FilterError


class Filters(unittest.TestCase):
    def check(self, source, expected, **values):
        self.assertEqual(Environment().render(source, **values), expected)

    def test_case(self):
        self.check("{{ a|upper }}{{ a|lower }}", "ABCabc", a="aBc")
        self.check("{{ 'the end of it'|title }}", "The End Of It")

    def test_chain(self):
        self.check("{{ '  ab '|trim|upper|replace:'B','X' }}", "AX")

    def test_sequences(self):
        self.check("{{ a|length }} {{ a|first }} {{ a|last }} {{ a|join:'-' }}", "3 1 3 1-2-3", a=[1, 2, 3])

    def test_sequences_of_nothing(self):
        self.check("{{ a|length }}{{ a|first }}{{ a|last }}{{ a|join:'-' }}", "0", a=[])

    def test_own_filter(self):
        env = Environment(filters={"shout": lambda value, mark="!": f"{value}{mark}"})
        self.assertEqual(env.render("{{ 'hey'|shout }}{{ 'hey'|shout:'?' }}"), "hey!hey?")

    def test_unknown_filter(self):
        with self.assertRaisesRegex(FilterError, "no filter 'nope'.*upper"):
            Environment().render("{{ 1|nope }}")

    def test_wrong_arguments(self):
        with self.assertRaisesRegex(FilterError, "replace"):
            Environment().render("{{ 'a'|replace:'b' }}")


if __name__ == "__main__":
    unittest.main()
