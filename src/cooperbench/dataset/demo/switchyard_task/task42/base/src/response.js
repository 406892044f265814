'use strict';

/** A text response. */
function text(body, status = 200, headers = {}) {
  return { status, headers: { 'content-type': 'text/plain; charset=utf-8', ...headers }, body };
}

/** A JSON response. */
function json(value, status = 200, headers = {}) {
  return { status, headers: { 'content-type': 'application/json', ...headers }, body: JSON.stringify(value) };
}

/** Send somebody elsewhere. */
function redirect(location, status = 302) {
  return { status, headers: { location }, body: '' };
}

/** Whatever a handler returned, as a response. */
function toResponse(value) {
  if (value === undefined || value === null) {
    return { status: 204, headers: {}, body: '' };
  }
  if (typeof value === 'string') {
    return text(value);
  }
  if (typeof value === 'object' && Number.isInteger(value.status)) {
    return { status: value.status, headers: value.headers ?? {}, body: value.body ?? '' };
  }
  return json(value);
}

/** Whatever was thrown, as a response. Only an HttpError says what happened. */
function errorResponse(error) {
  if (error instanceof Error && Number.isInteger(error.status)) {
    return text(error.message, error.status, error.headers);
  }
  return text('internal error', 500);
}

module.exports = { errorResponse, json, redirect, text, toResponse };
