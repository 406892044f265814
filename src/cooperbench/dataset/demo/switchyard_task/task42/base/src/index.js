'use strict';

const { HttpError, PatternError } = require('./errors');
const { json, redirect, text } = require('./response');
const { METHODS, Router, createRouter } = require('./router');

module.exports = {
  HttpError,
  METHODS,
  PatternError,
  Router,
  createRouter,
  json,
  redirect,
  text,
};
