// Package mqtt is the client of MQTT 5 brokers: [transport.Dialer] and [transport.Conn] over the
// topics of Open Cluster Management. It speaks to both kinds of brokers:
//
//   - A Hawser broker announces itself in its CONNACK. Subscriptions carry what is negotiated
//     then, publishes are answered with receipts and errors, and the broker keeps the state.
//   - A stock broker only passes messages on ([transport.Accepted].Plain). A PUBACK of it says
//     that it has the message, not that it is on disk or that anybody is there; it may drop what
//     it acknowledged. What the parties do about that is theirs. Here, whatever contradicts its
//     topic is dropped, and so is what the broker retained.
//
// A Conn is one connection, as with every transport: package session is the only reconnect loop.
// It is made of these parts, from the wire up:
//
//	stream    looks at the length of packets before they are read, and writes them whole
//	paho      packets, CONNECT, the calls (github.com/eclipse/paho.golang)
//	link      packet ids, answers, how much may be on its way; it takes the place of paho's session
//	inbox     what arrived and is not accepted, acknowledged in the order in which it came
//	Conn      events, topics, errors
//
// Everything has QoS 1 and one acknowledgement: ours is sent when the handler has accepted the
// event. Nothing is retained, no topic has an alias. [Options] come from a configuration file of
// Open Cluster Management: [File].
package mqtt
