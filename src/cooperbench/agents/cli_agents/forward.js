// Listens on 127.0.0.1 in a sandbox and carries each connection over stdin and stdout. Usage: node -e SCRIPT PORT
// Frames, both ways: connection (4 bytes), kind (1), length (4), data. `forward.py` is the other end.
'use strict';
const net = require('net');
const [READY, OPEN, DATA, END, CLOSE] = [0, 1, 2, 3, 4];
const HEADER_BYTES = 9;
const connections = new Map();
let last = 0;
// Not process.stdout: writing to that would wait for the harness, and nothing would be read meanwhile.
const output = require('fs').createWriteStream('', {fd: 1});

function send(connection, kind, data = Buffer.alloc(0)) {
  const header = Buffer.alloc(HEADER_BYTES);
  header.writeUInt32BE(connection, 0);
  header[4] = kind;
  header.writeUInt32BE(data.length, 5);
  if (!output.write(Buffer.concat([header, data]))) connections.forEach((socket) => socket.pause());
}

function receive(connection, kind, data) {
  const socket = connections.get(connection);
  if (!socket) return;
  if (kind === DATA) socket.write(data);
  else if (kind === END) socket.end();
  else socket.destroy();
}

output.on('drain', () => connections.forEach((socket) => socket.resume()));
output.on('error', () => process.exit(1));

let unread = Buffer.alloc(0);
process.stdin.on('data', (piece) => {
  unread = unread.length ? Buffer.concat([unread, piece]) : piece;
  let start = 0;
  while (unread.length - start >= HEADER_BYTES) {
    const end = start + HEADER_BYTES + unread.readUInt32BE(start + 5);
    if (unread.length < end) break;
    receive(unread.readUInt32BE(start), unread[start + 4], unread.subarray(start + HEADER_BYTES, end));
    start = end;
  }
  unread = unread.subarray(start);
});
process.stdin.on('end', () => process.exit(0));

const server = net.createServer({allowHalfOpen: true, noDelay: true}, (socket) => {
  const connection = ++last;
  connections.set(connection, socket);
  send(connection, OPEN);
  socket.on('data', (data) => send(connection, DATA, data));
  socket.on('end', () => send(connection, END));
  socket.on('error', () => {}); // it is closed next
  socket.on('close', () => {
    connections.delete(connection);
    send(connection, CLOSE);
  });
});
server.on('error', () => process.exit(1));
server.listen(Number(process.argv[1]), '127.0.0.1', () => send(server.address().port, READY));
