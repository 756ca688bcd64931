package mqtt

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport/mqtt/property"
)

const (
	// mostFilters and mostProperties limit the memory that one packet takes.
	mostFilters    = 16
	mostProperties = codec.MaxAttributes + 16
	// mostTopicBytes is the maximum length of a topic, more than the grammar of topics needs.
	mostTopicBytes = 1 << 10
)

// violation ends a connection because its peer broke the rules of MQTT or of this broker.
type violation struct {
	reason property.Reason
	text   string
}

// Error implements error.
func (v *violation) Error() string { return v.text }

func violated(reason property.Reason, format string, args ...any) *violation {
	return &violation{reason: reason, text: fmt.Sprintf(format, args...)}
}

func malformed(format string, args ...any) *violation {
	return violated(property.MalformedPacket, format, args...)
}

func wrong(format string, args ...any) *violation {
	return violated(property.ProtocolError, format, args...)
}

// errShort is the error of a packet that is too short.
var errShort = malformed("the packet ends within a field")

// validate checks a packet before the codec decodes it, because the codec accepts packets that MQTT forbids,
// and panics on some of them. A valid packet has exactly the fields of its kind. Each property occurs at most
// once with an allowed value. Filters and properties are limited in number. validate and the codec both read
// from the left, so the codec decodes exactly the checked fields.
func validate(header byte, body []byte) error {
	w := &packetReader{rest: body}
	kind, flags := header>>4, header&0x0F
	if want := flagsOf(kind); kind != packets.Publish && flags != want {
		return malformed("the flags of a packet of kind %d are %d, not %d", kind, flags, want)
	}
	switch kind {
	case packets.Connect:
		w.connect()
	case packets.Publish:
		w.publish(flags)
	case packets.Puback:
		w.identifier()
		w.reason(kind)
	case packets.Subscribe, packets.Unsubscribe:
		w.filters(kind)
	case packets.Pingreq:
	case packets.Disconnect:
		w.reason(kind)
	default:
		return wrong("a client does not send packets of kind %d here", kind)
	}
	if w.err == nil && len(w.rest) > 0 {
		w.fail(malformed("%d bytes follow the packet's last field", len(w.rest)))
	}
	return w.err
}

// decode returns a packet that validate has accepted. Its parts alias body.
func decode(header byte, body []byte) (*packets.Packet, error) {
	k := &packets.Packet{ProtocolVersion: 5, FixedHeader: packets.FixedHeader{Type: header >> 4, Remaining: len(body)}}
	var err error
	switch k.FixedHeader.Type {
	case packets.Connect:
		err = k.ConnectDecode(body)
	case packets.Publish:
		k.FixedHeader.Qos = header >> 1 & 3
		err = k.PublishDecode(body)
	case packets.Puback:
		err = k.PubackDecode(body)
	case packets.Subscribe:
		err = k.SubscribeDecode(body)
	case packets.Unsubscribe:
		err = k.UnsubscribeDecode(body)
	}
	var code packets.Code
	switch {
	case err == nil:
		return k, nil
	case errors.As(err, &code):
		return nil, violated(property.Reason(code.Code), "%s", code.Reason)
	}
	return nil, malformed("%v", err)
}

// flagsOf returns the flags that a kind of packet must have.
func flagsOf(kind byte) byte {
	switch kind {
	case packets.Subscribe, packets.Unsubscribe, packets.Pubrel:
		return 2
	}
	return 0
}

// packetReader reads the fields of a packet. After the first error it reads nothing.
type packetReader struct {
	rest []byte
	err  error
}

func (w *packetReader) fail(err error) {
	w.err = cmp.Or(w.err, err)
	w.rest = nil
}

// take returns the next n bytes.
func (w *packetReader) take(n int) []byte {
	if w.err != nil || n > len(w.rest) {
		w.fail(errShort)
		return nil
	}
	b := w.rest[:n]
	w.rest = w.rest[n:]
	return b
}

func (w *packetReader) byte() byte {
	if b := w.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (w *packetReader) uint16() uint16 {
	if b := w.take(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (w *packetReader) bytes() []byte { return w.take(int(w.uint16())) }

// text reads a string, which must be valid text.
func (w *packetReader) text() []byte {
	b := w.bytes()
	if !utf8.Valid(b) {
		w.fail(malformed("a text is not UTF-8"))
	}
	if bytes.IndexByte(b, 0) >= 0 {
		w.fail(malformed("a text contains the character U+0000"))
	}
	return b
}

// number reads a variable byte integer.
func (w *packetReader) number() int {
	n, taken, err := variable(w.rest)
	if err != nil || w.err != nil {
		w.fail(errShort)
		return 0
	}
	w.rest = w.rest[taken:]
	return n
}

var errVariable = errors.New("a variable byte integer has more than four bytes")

// variable reads a variable byte integer, of four bytes at most.
func variable(b []byte) (n, taken int, err error) {
	number, taken := binary.Uvarint(b[:min(len(b), 4)])
	if taken == 0 {
		err = errVariable
	}
	return int(number), taken, err
}

// identifier reads a packet identifier.
func (w *packetReader) identifier() {
	if w.uint16() == 0 && w.err == nil {
		w.fail(wrong("the packet identifier is 0"))
	}
}

// reason reads the optional fields at the end of an acknowledgement. The packet may end before the reason code
// or before the properties.
func (w *packetReader) reason(kind byte) {
	if len(w.rest) > 0 {
		w.byte()
	}
	if len(w.rest) > 0 {
		w.properties(kind)
	}
}

func (w *packetReader) connect() {
	if name := w.text(); w.err == nil && string(name) != "MQTT" {
		w.fail(violated(property.UnsupportedVersion, "the protocol is %.20q, not MQTT", name))
	}
	if version := w.byte(); w.err == nil && version != 5 {
		w.fail(violated(property.UnsupportedVersion, "this broker supports MQTT version 5, not %d", version))
	}
	flags := w.byte()
	const reserved, will, willQoS, willRetain, password, user = 0x01, 0x04, 0x18, 0x20, 0x40, 0x80
	switch {
	case flags&reserved != 0:
		w.fail(malformed("a reserved flag of CONNECT is set"))
	case flags&will == 0 && flags&(willQoS|willRetain) != 0, flags&willQoS == willQoS:
		w.fail(malformed("the will flags of CONNECT contradict each other"))
	case flags&willRetain != 0:
		w.fail(violated(property.RetainNotSupported, "retained messages are not supported"))
	case flags&willQoS == 0x10:
		w.fail(violated(property.QoSNotSupported, "QoS 2 is not supported"))
	}
	w.uint16() // keep alive
	w.properties(packets.Connect)
	w.text() // client id
	if flags&will != 0 {
		w.properties(packets.WillProperties)
		w.text()
		w.bytes()
	}
	if flags&user != 0 {
		w.text()
	}
	if flags&password != 0 {
		w.bytes()
	}
}

func (w *packetReader) publish(flags byte) {
	w.head(flags)
	w.properties(packets.Publish)
	if w.err == nil {
		w.rest = nil // the payload
	}
}

// head reads the fields of PUBLISH before the properties.
func (w *packetReader) head(flags byte) {
	const retain, qos, dup = 0x01, 0x06, 0x08
	switch {
	case flags&qos == qos, flags&qos == 0 && flags&dup != 0:
		w.fail(malformed("the flags of PUBLISH contradict each other"))
	case flags&qos > 2:
		w.fail(violated(property.QoSNotSupported, "QoS 2 is not supported"))
	case flags&retain != 0:
		w.fail(violated(property.RetainNotSupported, "retained messages are not supported"))
	}
	if topic := w.text(); len(topic) > mostTopicBytes {
		w.fail(violated(property.TopicNameInvalid, "the topic has %d bytes, at most %d are accepted", len(topic), mostTopicBytes))
	}
	if flags&qos != 0 {
		w.identifier()
	}
}

func (w *packetReader) filters(kind byte) {
	w.identifier()
	w.properties(kind)
	for n := 0; w.err == nil && (n == 0 || len(w.rest) > 0); n++ {
		filter := w.text()
		switch {
		case w.err == nil && len(filter) == 0:
			w.fail(wrong("a topic filter is empty"))
		case n == mostFilters:
			w.fail(violated(property.QuotaExceeded, "more than %d topic filters in one packet", mostFilters))
		}
		if kind == packets.Subscribe {
			w.option()
		}
	}
}

// option reads the options of one filter of SUBSCRIBE.
func (w *packetReader) option() {
	o := w.byte()
	const qos, retainHandling, reserved = 0x03, 0x30, 0xC0
	if o&qos == qos || o&retainHandling == retainHandling || o&reserved != 0 {
		w.fail(wrong("the options %#02x of a topic filter are not allowed", o))
	}
}

// form is the encoding of a property's value.
type form byte

const (
	oneByte form = iota + 1
	twoBytes
	fourBytes
	varying
	binaryData
	aText
	twoTexts
)

// forms are the encodings of the properties that a client may send in any packet. The codec checks in which
// packet each is allowed.
var forms = map[byte]form{
	packets.PropPayloadFormat: oneByte, packets.PropMessageExpiryInterval: fourBytes, packets.PropContentType: aText,
	packets.PropResponseTopic: aText, packets.PropCorrelationData: binaryData, packets.PropSubscriptionIdentifier: varying,
	packets.PropSessionExpiryInterval: fourBytes, packets.PropAuthenticationMethod: aText, packets.PropAuthenticationData: binaryData,
	packets.PropRequestProblemInfo: oneByte, packets.PropWillDelayInterval: fourBytes, packets.PropRequestResponseInfo: oneByte,
	packets.PropReasonString: aText, packets.PropReceiveMaximum: twoBytes, packets.PropTopicAliasMaximum: twoBytes,
	packets.PropTopicAlias: twoBytes, packets.PropUser: twoTexts, packets.PropMaximumPacketSize: fourBytes,
}

// refused are the properties that are not supported.
var refused = map[byte]*violation{
	packets.PropSubscriptionIdentifier: violated(property.SubscriptionIDUnsupported, "subscription identifiers are not supported"),
	packets.PropTopicAlias:             violated(property.TopicAliasInvalid, "topic aliases are not supported: Topic Alias Maximum is 0"),
	packets.PropAuthenticationMethod:   violated(property.BadAuthenticationMethod, "enhanced authentication is not supported; connect with a client certificate or a token"),
}

// properties reads the properties of a packet.
func (w *packetReader) properties(kind byte) {
	all := w.take(w.number())
	if w.err != nil {
		return
	}
	p := &packetReader{rest: all}
	var seen uint64 // a set of numbers below 64
	for n := 1; p.err == nil && len(p.rest) > 0; n++ {
		id := p.byte()
		switch {
		case forms[id] == 0 || id >= 64:
			p.fail(wrong("a client does not send the property %d on a packet of kind %d", id, kind))
		case n > mostProperties:
			p.fail(violated(property.QuotaExceeded, "more than %d properties", mostProperties))
		case id != packets.PropUser && seen&(1<<id) != 0:
			p.fail(wrong("the property %d is given twice", id))
		case refused[id] != nil:
			p.fail(refused[id])
		}
		seen |= 1 << id
		p.property(id)
	}
	if p.err != nil {
		w.fail(p.err)
	}
}

// property reads the value of one property.
func (w *packetReader) property(id byte) {
	var value []byte
	switch forms[id] {
	case oneByte:
		if value = w.take(1); w.err == nil && value[0] > 1 {
			w.fail(wrong("the property %d is %d, and can be 0 or 1", id, value[0]))
		}
	case twoBytes:
		value = w.take(2)
	case fourBytes:
		value = w.take(4)
	case varying:
		w.number()
	case binaryData:
		w.bytes()
	case aText:
		w.text()
	case twoTexts:
		w.text()
		w.text()
	}
	if (id == packets.PropReceiveMaximum || id == packets.PropMaximumPacketSize) && len(bytes.TrimLeft(value, "\x00")) == 0 {
		w.fail(wrong("the property %d is 0", id))
	}
}
