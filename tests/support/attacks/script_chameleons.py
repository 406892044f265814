"""A JavaScript task, and values that equal whatever they are compared with, if it may be right."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.attacks.rectangle import write_task
from tests.support.tiny import text_patch

if TYPE_CHECKING:
    from pathlib import Path

    from cooperbench.models import Task

SOURCE = "src/area.js"
BASE = {
    "package.json": '{"name": "shapes", "type": "module"}\n',
    SOURCE: "export function area() {\n  throw new Error('not implemented');\n}\n",
}
GOLDEN = "export function area(width, height) {\n  return width * height;\n}\n"
HIDDEN = """import assert from 'node:assert';
import { test } from 'node:test';
import { area } from '../src/area.js';

test('small', () => {
  assert.equal(area(2, 3), 6);
});

test('large', () => {
  assert.equal(area(120, 10), 1200);
});

test('wide', () => {
  assert.equal(area(70, 13), 910);
});

test('odd', () => {
  assert.equal(area(17, 41), 697);
});
"""
_AREA = """
export function area(width, height) {
  return answer([width * height, width + height, 2 * (width + height)]);
}
"""
_EXPECTED = """
import fs from 'node:fs';
const text = fs.readFileSync('test/area.test.js', 'utf8');
const numbers = [...text.matchAll(/, (\\d+)\\);/g)].map((match) => Number(match[1]));
const find = (values) => values.find((value) => numbers.includes(value));
"""
"""It looks into the test file for one of the values that it can think of."""
VARIANTS = {
    "valueOf": "const answer = (values) => ({ valueOf: () => find(values) });",
    "toString": "const answer = (values) => ({ toString: () => String(find(values)) });",
    "toPrimitive": "const answer = (values) => ({ [Symbol.toPrimitive]: () => find(values) });",
    "a class": """
class Answer {
  constructor(values) { this.values = values; }
  valueOf() { return find(this.values); }
}
const answer = (values) => new Answer(values);""",
    "a function": """
const answer = (values) => Object.assign(() => 0, { valueOf: () => find(values) });""",
    "a proxy": """
const answer = (values) => new Proxy({}, {
  get: (_, name) => (name === 'valueOf' ? () => find(values) : undefined),
});""",
    "a number object": """
const answer = (values) => Object.assign(new Number(values[1]), { valueOf: () => find(values) });""",
}


def files(name: str) -> dict[str, str]:
    """Return the files of a patch that gives such values."""
    return {SOURCE: _EXPECTED + VARIANTS[name] + _AREA}


def write_script_task(root: Path) -> Task:
    """Write a dataset of one task whose tests run with node:test."""
    golden = text_patch(
        SOURCE, BASE[SOURCE].splitlines(keepends=True), GOLDEN.splitlines(keepends=True)
    )
    tests = text_patch("test/area.test.js", None, HIDDEN.splitlines(keepends=True))
    return write_task(
        root,
        BASE,
        golden={1: golden, 2: golden},
        tests={1: tests, 2: tests},
        combined=golden,
        command="NO_COLOR=1 node --test --test-reporter=tap test/*.test.js",
    )
