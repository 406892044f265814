'use strict';

/** An error that is a response: `throw new HttpError(403, 'members only')`. */
class HttpError extends Error {
  constructor(status, message, headers = {}) {
    super(message);
    this.name = 'HttpError';
    this.status = status;
    this.headers = headers;
  }
}

/** A pattern that cannot be understood. */
class PatternError extends Error {
  constructor(pattern, reason) {
    super(`bad pattern ${JSON.stringify(pattern)}: ${reason}`);
    this.name = 'PatternError';
    this.pattern = pattern;
  }
}

module.exports = { HttpError, PatternError };
