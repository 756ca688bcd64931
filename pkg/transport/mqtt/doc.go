// Package mqtt is the client of MQTT 5 brokers: [transport.Dialer] and [transport.Conn] over the topics of Open
// Cluster Management. It supports both kinds of brokers:
//
//   - A Hawser broker announces itself in its CONNACK. Subscriptions then negotiate the protocol, publishes
//     return receipts and errors, and the broker stores the state.
//   - A stateless broker only passes messages on ([transport.Accepted].Stateless). Its PUBACK means that it has
//     the message. The message need not be on disk, and there may be no receiver; the broker may drop what it
//     acknowledged. Agents and sources handle that. This package drops messages that contradict their topic,
//     and retained messages.
//
// A Conn is one connection, as with all transports: package session is the only reconnect loop. Its parts, from
// the wire up:
//
//	stream         checks the length of packets before they are read, and writes them whole
//	paho           packets, CONNECT, the calls (github.com/eclipse/paho.golang)
//	sessionState   packet ids, answers, send window; it replaces paho's session
//	inbox          received messages, acknowledged in order of arrival after acceptance
//	Conn           events, topics, errors
//
// Everything has QoS 1 and one acknowledgement, which is sent when the handler has accepted the event. Nothing
// is retained, and no topic has an alias. [Options] come from a configuration file of Open Cluster Management:
// [File].
package mqtt
