'use strict';

const { toResponse } = require('./response');

/**
 * Compose middleware and a handler into one function of a request. Each middleware gets the request and `next`, and
 * returns a response; it can answer by itself, or call `next()` once and change what comes back.
 */
function compose(middleware, handler) {
  return function run(request) {
    async function step(index) {
      if (index === middleware.length) {
        return toResponse(await handler(request));
      }
      let called = false;
      const next = () => {
        if (called) {
          throw new Error('next() was called twice');
        }
        called = true;
        return step(index + 1);
      };
      return toResponse(await middleware[index](request, next));
    }
    return step(0);
  };
}

module.exports = { compose };
