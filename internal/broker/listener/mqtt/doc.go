// Package mqtt serves MQTT 5 at the broker's port. It takes over connections without HTTP/2 from the port,
// directly or as WebSockets. It passes every publish and every subscription to a [transport.Server], as the
// gRPC server does.
//
// A connection has a goroutine that reads. While there is work, it also has an owner goroutine, which writes.
// Most connections are idle and have none. The size of a packet is limited and its content validated before the
// codec decodes it.
//
// It is a broker for the topics of Open Cluster Management and nothing else. The table shows which features of
// MQTT are served, rejected or ignored:
//
//	MQTT                                  here
//	QoS 0                                 accepted, at most once; delivered to clients that ask for no more
//	QoS 1                                 PUBACK when the event is on disk, in the order of the publishes
//	QoS 2, retained messages              rejected: DISCONNECT 0x9B, 0x9A, also as a will
//	wills                                 ignored: the broker knows which clients are connected
//	user name                             ignored: the identity comes from the certificate or the token
//	password                              a bearer token if the certificate gives no identity; else ignored
//	enhanced authentication               rejected: CONNACK 0x8C
//	client id                             takeover within one identity: DISCONNECT 0x8E to the older connection
//	sessions                              none: Session Expiry Interval is 0; a client that reconnects compares
//	topics outside the grammar            rejected: PUBACK 0x90, SUBACK 0x8F
//	"+" instead of the own name           rejected: SUBACK 0x87
//	"+" for the other side                all of it; a name there: only events of that name, and no resume
//	$share                                statuses of a source: one member gets each, and another one if that leaves
//	                                      before its PUBACK; no resume; No Local 0x82; works of a cluster 0x9E
//	broadcast topics                      publishes are accepted; nothing is ever sent on them, as the broker answers
//	topic aliases, subscription ids       rejected: DISCONNECT 0x94, 0xA1
//	Message Expiry, Response Topic,       ignored
//	Correlation Data, Payload Format
//	Receive Maximum                       256 of the broker; of the client's at most 256 are used
//	Maximum Packet Size                   of the client's: an event above it ends the connection, 0x95; it is never dropped
//	Keep Alive                            at most 60 s, else the broker sets Server Keep Alive
//	Request Problem Information           0: codes alone
//	a subscription that the broker ends   ends the connection, with the reason
//	PUBACK from 0x80 on of a delivery     ends the connection, 0x83: the client has to subscribe again to get the event
package mqtt
