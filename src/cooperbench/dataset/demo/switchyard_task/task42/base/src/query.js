'use strict';

/**
 * Split a URL into its path and its query text. The fragment is dropped.
 */
function splitUrl(url) {
  const [beforeFragment] = url.split('#', 1);
  const mark = beforeFragment.indexOf('?');
  if (mark < 0) {
    return { path: beforeFragment, queryText: '' };
  }
  return { path: beforeFragment.slice(0, mark), queryText: beforeFragment.slice(mark + 1) };
}

/** Undo percent-encoding; text that is not well-formed is kept as it is. */
function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/**
 * Parse a query text into an object without a prototype. A name that occurs more than once has an array of values;
 * a name without `=` has an empty text.
 */
function parseQuery(queryText) {
  const query = Object.create(null);
  for (const part of queryText.split('&')) {
    if (part === '') {
      continue;
    }
    const [rawName, ...rest] = part.replaceAll('+', ' ').split('=');
    const name = decode(rawName);
    const value = decode(rest.join('='));
    if (name in query) {
      query[name] = [].concat(query[name], value);
    } else {
      query[name] = value;
    }
  }
  return query;
}

module.exports = { decode, parseQuery, splitUrl };
