package mqtt

import (
	"encoding/binary"
	"math/bits"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport/mqtt/property"
)

// The broker encodes its packets itself. The codec copies each payload several times, and omits properties of
// acknowledgements that it does not expect.

// answer is a packet of the broker that acknowledges or ends something. Text and properties are omitted if they
// do not fit.
type answer struct {
	kind byte
	// id is the identifier of the acknowledged packet, 0 for a packet without an identifier.
	id uint16
	// before is written before the properties, codes after them.
	before, codes []byte
	// must are encoded properties that are always written.
	must       []byte
	text       string
	properties []codec.Property
}

// append appends the packet, of at most most bytes. It omits text and properties if they do not fit, or if
// reported is false.
func (a *answer) append(dst []byte, most int, reported bool) []byte {
	properties := a.must
	if reported && (a.text != "" || len(a.properties) > 0) {
		properties = append([]byte{}, a.must...)
		if a.text != "" {
			properties = appendText(append(properties, packets.PropReasonString), a.text)
		}
		for _, p := range a.properties {
			properties = appendUser(properties, p)
		}
	}
	if a.size(properties) > most && len(properties) > len(a.must) {
		properties = a.must
	}
	dst = append(dst, a.kind<<4)
	dst = appendNumber(dst, a.remaining(properties))
	if a.id != 0 {
		dst = binary.BigEndian.AppendUint16(dst, a.id)
	}
	dst = append(dst, a.before...)
	dst = append(appendNumber(dst, len(properties)), properties...)
	return append(dst, a.codes...)
}

func (a *answer) remaining(properties []byte) int {
	n := len(a.before) + lengthOf(len(properties)) + len(properties) + len(a.codes)
	if a.id != 0 {
		n += 2
	}
	return n
}

func (a *answer) size(properties []byte) int {
	n := a.remaining(properties)
	return 1 + lengthOf(n) + n
}

// puback returns the acknowledgement of a publish.
func puback(id uint16, r property.Refusal) *answer {
	return &answer{kind: packets.Puback, id: id, before: []byte{byte(r.Reason)}, text: r.Text, properties: r.Properties}
}

// appendAccepted appends the PUBACK of an accepted publish. Its result is that of puback, without allocations.
func appendAccepted(dst []byte, id uint16, receipt []codec.Property, most int, reported bool) []byte {
	a := answer{kind: packets.Puback, id: id, before: success, properties: receipt}
	return a.append(dst, most, reported)
}

var success = []byte{byte(property.Success)}

// disconnect returns the packet that ends a connection.
func disconnect(r property.Refusal) *answer {
	return &answer{kind: packets.Disconnect, before: []byte{byte(r.Reason)}, text: r.Text, properties: r.Properties}
}

// pingresp is the answer to a ping.
var pingresp = []byte{packets.Pingresp << 4, 0}

// publication is an encoded PUBLISH of an event, without its identifier.
type publication struct {
	packet []byte
	// id is the offset of the identifier, 0 if there is none.
	id int
	// about is the resource id of the event.
	about string
}

// newPublication returns the PUBLISH of an event.
func newPublication(topic string, m codec.Message, qos byte) publication {
	properties := 0
	if m.ContentType != "" {
		properties += 3 + len(m.ContentType)
	}
	for _, p := range m.Properties {
		properties += 5 + len(p.Key) + len(p.Value)
	}
	n := 2 + len(topic) + 2*int(qos) + lengthOf(properties) + properties + len(m.Payload)
	b := make([]byte, 0, 1+lengthOf(n)+n)
	b = append(b, packets.Publish<<4|qos<<1)
	b = appendText(appendNumber(b, n), topic)
	p := publication{about: property.Get(m.Properties, "ce-"+codec.ExtResourceID)}
	if qos > 0 {
		p.id = len(b)
		b = append(b, 0, 0)
	}
	b = appendNumber(b, properties)
	if m.ContentType != "" {
		b = appendText(append(b, packets.PropContentType), m.ContentType)
	}
	for _, u := range m.Properties {
		b = appendUser(b, u)
	}
	p.packet = append(b, m.Payload...)
	return p
}

// number sets the identifier of the packet.
func (p publication) number(id uint16) { binary.BigEndian.PutUint16(p.packet[p.id:], id) }

func appendUser(dst []byte, p codec.Property) []byte {
	return appendText(appendText(append(dst, packets.PropUser), p.Key), p.Value)
}

// appendText appends a string, cut to the maximum of MQTT (65,535 bytes).
func appendText(dst []byte, s string) []byte {
	s = s[:min(len(s), codec.MaxTextBytes)]
	return append(binary.BigEndian.AppendUint16(dst, uint16(len(s))), s...)
}

// appendNumber appends a variable byte integer.
func appendNumber(dst []byte, n int) []byte { return binary.AppendUvarint(dst, uint64(n)) }

// lengthOf returns the length of a variable byte integer.
func lengthOf(n int) int { return (bits.Len(uint(n)|1) + 6) / 7 }
