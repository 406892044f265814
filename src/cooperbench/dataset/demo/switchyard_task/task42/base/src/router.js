'use strict';

const { HttpError } = require('./errors');
const { compose } = require('./middleware');
const { compareSegments, compilePattern, matchSegments, splitPath } = require('./pattern');
const { parseQuery, splitUrl } = require('./query');
const { errorResponse } = require('./response');

const METHODS = ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS'];

/** Finds the route of a request and runs its handler inside the middleware. */
class Router {
  constructor() {
    this.routes = [];
    this.middleware = [];
  }

  /** Add a route. Returns the router, so that calls can be chained. */
  add(method, pattern, handler) {
    const wanted = method.toUpperCase();
    if (!METHODS.includes(wanted)) {
      throw new TypeError(`unknown method ${method}`);
    }
    if (typeof handler !== 'function') {
      throw new TypeError(`the handler of ${wanted} ${pattern} is not a function`);
    }
    const segments = compilePattern(pattern);
    this.routes.push({ method: wanted, pattern, segments, handler });
    this.routes.sort((left, right) => compareSegments(left.segments, right.segments));
    return this;
  }

  get(pattern, handler) {
    return this.add('GET', pattern, handler);
  }

  post(pattern, handler) {
    return this.add('POST', pattern, handler);
  }

  put(pattern, handler) {
    return this.add('PUT', pattern, handler);
  }

  delete(pattern, handler) {
    return this.add('DELETE', pattern, handler);
  }

  /** Add middleware; it runs in the order in which it was added, also where no route fits. */
  use(middleware) {
    if (typeof middleware !== 'function') {
      throw new TypeError('middleware is a function of request and next');
    }
    this.middleware.push(middleware);
    return this;
  }

  /** Find the route for a method and a path: `{ route, params }`, or null. */
  find(method, path) {
    const wanted = method.toUpperCase();
    const parts = splitPath(path);
    for (const route of this.routes) {
      if (route.method !== wanted) {
        continue;
      }
      const params = matchSegments(route.segments, parts);
      if (params !== null) {
        return { route, params };
      }
    }
    return null;
  }

  /** Answer a request. Never rejects: what goes wrong is a response too. */
  async dispatch(method, url, extra = {}) {
    const { path, queryText } = splitUrl(url);
    const found = this.find(method, path);
    const request = {
      ...extra,
      method: method.toUpperCase(),
      path,
      params: found?.params ?? {},
      query: parseQuery(queryText),
      route: found?.route?.pattern ?? null,
    };
    const handler = found?.route?.handler ?? notFound;
    try {
      return await compose(this.middleware, handler)(request);
    } catch (error) {
      return errorResponse(error);
    }
  }
}

function notFound(request) {
  throw new HttpError(404, `nothing at ${request.path}`);
}

function createRouter() {
  return new Router();
}

module.exports = { METHODS, Router, createRouter };
