'use strict';

const assert = require('node:assert/strict');
const { test } = require('node:test');

const { PatternError, createRouter } = require('../src');

function routerOf(...patterns) {
  const router = createRouter();
  for (const pattern of patterns) {
    router.get(pattern, (request) => ({ pattern, params: request.params }));
  }
  return router;
}

async function get(router, url) {
  const response = await router.dispatch('GET', url);
  return response.status === 200 ? JSON.parse(response.body) : response.status;
}

test('plain routes', async () => {
  const router = routerOf('/', '/about', '/a/b');
  assert.deepEqual(await get(router, '/'), { pattern: '/', params: {} });
  assert.deepEqual(await get(router, '/about/'), { pattern: '/about', params: {} });
  assert.deepEqual(await get(router, '/a/b?c=1#d'), { pattern: '/a/b', params: {} });
});

test('parameters take one segment and are decoded', async () => {
  const router = routerOf('/users/:id');
  assert.deepEqual(await get(router, '/users/J%C3%BCrgen'), { pattern: '/users/:id', params: { id: 'Jürgen' } });
  assert.equal(await get(router, '/users'), 404);
  assert.equal(await get(router, '/users/1/posts'), 404);
});

test('the more specific route wins, whatever the order', async () => {
  const router = routerOf('/:a/:b', '/users/:id', '/users/me');
  assert.equal((await get(router, '/users/me')).pattern, '/users/me');
  assert.equal((await get(router, '/users/7')).pattern, '/users/:id');
  assert.equal((await get(router, '/x/7')).pattern, '/:a/:b');
});

test('methods are kept apart', async () => {
  const router = createRouter().get('/a', () => 'got').post('/a', () => 'posted');
  assert.equal((await router.dispatch('post', '/a')).body, 'posted');
  assert.equal((await router.dispatch('GET', '/a')).body, 'got');
});

test('bad routes are refused', () => {
  const router = createRouter();
  assert.throws(() => router.get('users', () => {}), PatternError);
  assert.throws(() => router.get('/:a/:a', () => {}), /occurs twice/);
  assert.throws(() => router.get('/:', () => {}), PatternError);
  assert.throws(() => router.add('FROB', '/', () => {}), TypeError);
  assert.throws(() => router.get('/', 'text'), TypeError);
});
