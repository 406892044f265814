'use strict';

const assert = require('node:assert/strict');
const { test } = require('node:test');

const { HttpError, createRouter, json, redirect, text } = require('../src');

test('what handlers return', async () => {
  const router = createRouter()
    .get('/text', () => 'hi')
    .get('/nothing', () => undefined)
    .get('/object', async () => ({ a: 1 }))
    .get('/full', () => json([1], 201))
    .get('/away', () => redirect('/text'));
  assert.deepEqual(await router.dispatch('GET', '/text'), text('hi'));
  assert.equal((await router.dispatch('GET', '/nothing')).status, 204);
  assert.equal((await router.dispatch('GET', '/object')).body, '{"a":1}');
  assert.equal((await router.dispatch('GET', '/full')).status, 201);
  assert.equal((await router.dispatch('GET', '/away')).headers.location, '/text');
});

test('the request', async () => {
  let seen;
  const router = createRouter().get('/a/:b', (request) => {
    seen = request;
  });
  await router.dispatch('get', '/a/1?x=1&x=2&y=a+b&z', { user: 'ada' });
  assert.deepEqual({ ...seen.query }, { x: ['1', '2'], y: 'a b', z: '' });
  assert.deepEqual([seen.method, seen.path, seen.route, seen.user], ['GET', '/a/1', '/a/:b', 'ada']);
});

test('errors are responses', async () => {
  const router = createRouter()
    .get('/teapot', () => {
      throw new HttpError(418, 'short and stout');
    })
    .get('/broken', () => {
      throw new Error('secret');
    });
  assert.deepEqual(await router.dispatch('GET', '/teapot'), text('short and stout', 418));
  assert.deepEqual(await router.dispatch('GET', '/broken'), text('internal error', 500));
  assert.equal((await router.dispatch('GET', '/nowhere')).status, 404);
});

test('middleware wraps handlers in order', async () => {
  const trace = [];
  const note = (name) => async (request, next) => {
    trace.push(`${name} in`);
    const response = await next();
    trace.push(`${name} out ${response.status}`);
    return response;
  };
  const router = createRouter().use(note('a')).use(note('b')).get('/', () => 'x');
  await router.dispatch('GET', '/');
  assert.deepEqual(trace, ['a in', 'b in', 'b out 200', 'a out 200']);
});

test('middleware can answer by itself and cannot go on twice', async () => {
  const closed = createRouter().use(() => text('closed', 503)).get('/', () => 'open');
  assert.equal((await closed.dispatch('GET', '/')).status, 503);
  const twice = createRouter()
    .use(async (request, next) => {
      await next();
      return next();
    })
    .get('/', () => 'x');
  assert.equal((await twice.dispatch('GET', '/')).status, 500);
});
