// Package listener is the common part of the protocol servers on one port. It decides which peers may connect,
// how much of the port they may use, and when a connection ends.
//
// A [Port] counts a connection from its accept on, at the least possible cost. After the handshake it is a
// [Connection] with an identity. The packages below implement a protocol on it. They ask the connection before
// a call begins, report its traffic, and release its resources when it ends.
package listener
