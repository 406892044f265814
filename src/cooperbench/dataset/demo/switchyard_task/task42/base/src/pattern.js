'use strict';

const { PatternError } = require('./errors');
const { decode } = require('./query');

const PARAM = /^:([A-Za-z_]\w*)$/;

/**
 * A segment of a pattern is an object:
 *   source   as it was written
 *   rank     how specific it is; the higher one wins
 *   name     of the parameter that it fills, if it does
 *   match    (part) => object of parameters, or null where the part does not fit
 */

/** `:name` fits any part that is not empty. */
function paramSegment(source) {
  const found = PARAM.exec(source);
  if (found === null) {
    return null;
  }
  const name = found[1];
  return { source, rank: 10, name, match: (part) => (part === '' ? null : { [name]: part }) };
}

/** Anything that has no special sign in it stands for itself. */
function plainSegment(source) {
  if (/[:*<>(){}]/.test(source)) {
    return null;
  }
  const expected = decode(source);
  return { source, rank: 30, match: (part) => (part === expected ? {} : null) };
}

/** The kinds of segments: each makes a segment of its source, or returns null if it is not one of its kind. */
const SEGMENT_KINDS = [
  plainSegment,
  paramSegment,
];

/** The parts of a path, decoded, without the empty ones that slashes at its ends make. */
function splitPath(path) {
  const trimmed = path.replace(/^\/+/, '').replace(/\/+$/, '');
  return trimmed === '' ? [] : trimmed.split('/').map(decode);
}

function compileSegment(source, pattern) {
  for (const kind of SEGMENT_KINDS) {
    const segment = kind(source);
    if (segment !== null) {
      return segment;
    }
  }
  throw new PatternError(pattern, `cannot understand the segment ${JSON.stringify(source)}`);
}

/** Compile a pattern such as `/users/:id` into its segments. */
function compilePattern(pattern) {
  if (!pattern.startsWith('/')) {
    throw new PatternError(pattern, 'it must start with a slash');
  }
  const sources = pattern.split('/').filter((source) => source !== '');
  const segments = sources.map((source) => compileSegment(source, pattern));
  const names = segments.map((segment) => segment.name).filter((name) => name !== undefined);
  const twice = names.find((name, index) => names.indexOf(name) !== index);
  if (twice !== undefined) {
    throw new PatternError(pattern, `the parameter ${twice} occurs twice`);
  }
  return segments;
}

/** Match the parts of a path against segments: the parameters, or null. */
function matchSegments(segments, parts) {
  if (segments.length !== parts.length) {
    return null;
  }
  const params = {};
  for (const [index, segment] of segments.entries()) {
    const found = segment.match(parts[index]);
    if (found === null) {
      return null;
    }
    Object.assign(params, found);
  }
  return params;
}

/** Order of two patterns' segments for sorting: the more specific one first. */
function compareSegments(left, right) {
  const shared = Math.min(left.length, right.length);
  for (let index = 0; index < shared; index += 1) {
    if (left[index].rank !== right[index].rank) {
      return right[index].rank - left[index].rank;
    }
  }
  return right.length - left.length;
}

module.exports = { compareSegments, compilePattern, matchSegments, splitPath };
