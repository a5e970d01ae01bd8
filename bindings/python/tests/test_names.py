"""The table of names is what the library has, and people find it."""
import inspect
import re
import unittest

from support import Case

import ep
from ep._names import REQUIRED

# A value that is right for each attribute that has to be given.
RIGHT = {"op": {"reduce": "sum", "arg_reduce": "argmax", "unary": "relu"}, "dtype": "f32", "dims": [0], "shape": [1],
         "strides": [1], "before": [0], "after": [0], "scalar": 1, "value": 1, "end": 1}


def right(name, attribute):
    value = RIGHT.get(attribute, 1)
    return value.get(name, "add") if isinstance(value, dict) else value


class Names(Case):
    def told(self, name, **attributes):
        with self.assertRaises(ep.Error) as caught:
            self.session.run(name, **attributes)
        self.assertEqual(caught.exception.code, "InvalidArgument")
        return caught.exception.message

    def test_the_names_are_those_of_the_library(self):
        known = re.findall(r"`(\w+)`", self.told("none").split("expected one of")[1])
        self.assertEqual(sorted(known), sorted(ep.NAMES))

    def test_the_attributes_are_those_of_the_library(self):
        for name, row in ep.NAMES.items():
            told = self.told(name, no_such=1)
            self.assertIn("unknown field `no_such`", told)
            known = re.findall(r"`(\w+)`", told.split("no_such`")[1])
            self.assertEqual(known, list(row.attributes), name)

    def test_what_has_to_be_given_is_what_the_library_misses(self):
        for name, row in ep.NAMES.items():
            needed = [a for a, default in row.attributes.items() if default is REQUIRED]
            for missing in needed:
                given = {a: right(name, a) for a in needed if a != missing}
                self.assertIn(f"missing field `{missing}`", self.told(name, **given), name)
            # With all of them, whatever else is said is not about attributes.
            try:
                self.session.run(name, **{a: right(name, a) for a in needed})
            except ep.Error as e:
                self.assertNotIn("operator `", e.message)

    def test_defaults_are_those_of_the_library(self):
        """Given by name they change nothing: an operator with them is accepted, and None is left out."""
        for name, row in ep.NAMES.items():
            given = {a: right(name, a) if default is REQUIRED else default for a, default in row.attributes.items()}
            try:
                self.session.run(name, **given)
            except ep.Error as e:
                self.assertNotIn("operator `", e.message, name)

    def test_each_name_is_a_method_with_a_docstring_and_a_signature(self):
        for name, row in ep.NAMES.items():
            self.assertIn(name, dir(self.session))
            method = getattr(self.session, name)
            self.assertIn(row.about, inspect.getdoc(method))
            self.assertEqual(list(inspect.signature(method).parameters), ["inputs", *row.attributes])
        self.assertEqual(str(inspect.signature(ep.Session.softmax)), "(self, /, *inputs, dim=-1, dtype=None)")
        with self.assertRaises(AttributeError):
            self.session.sofmax

    def test_numbers_of_inputs_are_those_of_the_library(self):
        """An operator with one input more than the table says is refused."""
        for name, row in ep.NAMES.items():
            if row.inputs.startswith("*"):
                continue
            count = len([x for x in row.inputs.split(",") if x.strip()])
            given = {a: right(name, a) for a, default in row.attributes.items() if default is REQUIRED}
            xs = [self.session.tensor([1.0])] * (count + 1)
            with self.subTest(name), self.refused("InvalidArgument", "inputs"):
                self.session.run(name, *xs, **given)


if __name__ == "__main__":
    unittest.main()
