// Package mqtt is the broker's front for MQTT 5. It serves connections that the port hands over
// on which no HTTP/2 is spoken, as they are or as WebSockets, and hands every publish and every
// subscription to a [transport.Server], as the front for gRPC does.
//
// A connection has a goroutine that reads, and, while there is something to do, an owner, which
// writes: most connections are idle. What is read is bounded before the codec sees it, judged by a
// guard of our own, and only then decoded.
//
// It is a broker for the topics of Open Cluster Management and nothing else. What of MQTT is
// served, refused and ignored:
//
//	MQTT                                  here
//	QoS 0                                 taken, at most once; delivered to who asks for no more
//	QoS 1                                 PUBACK when the event is on disk, in the order of the publishes
//	QoS 2, retained messages              refused: DISCONNECT 0x9B, 0x9A, also as a will
//	wills                                 ignored: the broker knows who is there
//	user name                             ignored: the certificate says who it is, or the token
//	password                              a bearer token, where the certificate says nothing; else ignored
//	enhanced authentication               refused: CONNACK 0x8C
//	client id                             taken over within one identity: DISCONNECT 0x8E to the one before
//	sessions                              none: Session Expiry Interval is 0; who comes back compares
//	topics outside the grammar            refused: PUBACK 0x90, SUBACK 0x8F
//	"+" in the place of the own name      refused: SUBACK 0x87
//	"+" for the other side                all of it; a name there: only what is of that name, and nothing to resume
//	$share                                statuses of a source: one member gets each, and another one if that leaves
//	                                      before its PUBACK; no resume; No Local 0x82; works of a cluster 0x9E
//	broadcast topics                      publishes are taken; nothing is ever sent on them, as the broker answers
//	topic aliases, subscription ids       refused: DISCONNECT 0x94, 0xA1
//	Message Expiry, Response Topic,       ignored
//	Correlation Data, Payload Format
//	Receive Maximum                       256 of ours; of the client's at most 256 are used
//	Maximum Packet Size                   of the client's: an event above it ends the connection, 0x95, never the event
//	Keep Alive                            at most 60 s, else Server Keep Alive says so
//	Request Problem Information           0: codes alone
//	a subscription that the broker ends   ends the connection, with the reason
//	PUBACK from 0x80 on of a delivery     ends the connection, 0x83: who could not take an event has to subscribe again
package mqtt
