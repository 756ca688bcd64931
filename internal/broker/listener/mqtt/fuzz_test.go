package mqtt

import (
	"bytes"
	"errors"
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/hawser-io/hawser/pkg/transport/mqtt/property"
)

// seeds are packets of each kind, and packets on which the codec panics or which it must not accept.
var seeds = [][]byte{
	{0x10, 0, 4, 'M', 'Q', 'T', 'T', 5, 2, 0, 30, 0, 0, 1, 'c'},
	{0x10, 0, 4, 'M', 'Q', 'T', 'T', 5, 0xC6, 0, 30, 5, 0x11, 0, 0, 0, 9, 0, 0, 0, 0, 1, 't', 0, 1, 'p', 0, 1, 'u', 0, 1, 'p'},
	{0x10, 0, 4, 'M', 'Q', 'T', 'T', 5, 2, 0, 30, 6, 0x21, 0, 0, 0x21, 0, 1, 0, 0},  // Receive Maximum 0, and twice
	{0x32, 0, 3, 'a', '/', 'b', 0, 7, 7, 0x26, 0, 1, 'k', 0, 1, 'v', 'p', 'a', 'y'}, // a user property
	{0x30, 0, 1, 'a', 4, 0x03, 0, 1, 'x', '{', '}'},                                 // QoS 0
	{0x32, 0, 1, 'a', 0, 0, 0},                                               // identifier 0
	{0x32, 0, 1, 'a', 0, 1, 9, 0x26, 0, 200},                                 // properties longer than the packet
	{0x40, 0, 7}, {0x40, 0, 7, 0x83}, {0x40, 0, 7, 0x83, 4, 0x1F, 0, 1, 'r'}, // PUBACK
	{0x82, 0, 1, 0, 0, 1, '#', 0x01}, {0x82, 0, 1, 0, 0, 1, '#'}, {0x82, 0, 1, 0, 0, 0, 0x01}, // SUBSCRIBE, without its option, empty
	{0x82, 0, 1, 0, 0, 1, '#', 0x3F}, {0x82, 0, 1, 2, 0x0B, 0, 0, 1, '#', 1},
	{0xA2, 0, 1, 0, 0, 1, '#', 0, 1, 'a'}, {0xC0}, {0xE0}, {0xE0, 4}, {0xE0, 0, 0}, {0xF0}, {0x00},
	bytes.Repeat([]byte{0x82, 0, 1, 0, 0, 1, 'a', 0}, 20),
}

// FuzzCheck checks that the codec decodes each packet that validate accepts without a panic. The size of the
// result is bounded by the packet and by the limits.
func FuzzCheck(f *testing.F) {
	for _, s := range seeds {
		f.Add(s[0], s[1:])
	}
	f.Fuzz(func(t *testing.T, header byte, body []byte) {
		err := validate(header, body)
		if v := (*violation)(nil); err != nil && (!errors.As(err, &v) || v.reason < property.Unspecified || v.text == "") {
			t.Fatalf("%#v is no violation", err)
		}
		head := &packetReader{rest: body}
		if header>>4 == packets.Publish {
			head.head(header & 0x0F) // as for a skipped packet
		}
		if err != nil {
			return
		}
		k, err := decode(header, body)
		if err != nil {
			return // a property that is not of this kind of packet
		}
		if len(k.Filters) > mostFilters || len(k.Properties.User) > mostProperties || len(k.Connect.WillProperties.User) > mostProperties {
			t.Fatalf("%d filters, %d properties", len(k.Filters), len(k.Properties.User))
		}
		if (k.FixedHeader.Qos > 0 || header>>4 == packets.Subscribe) && k.PacketID == 0 || k.FixedHeader.Qos > 1 && header>>4 == packets.Publish || k.FixedHeader.Retain {
			t.Fatalf("%+v with the identifier %d", k.FixedHeader, k.PacketID)
		}
		for _, s := range k.Filters {
			if s.Filter == "" || s.Qos > 2 || s.RetainHandling > 2 {
				t.Fatalf("%+v", s)
			}
		}
		if header>>4 == packets.Publish && head.err != nil {
			t.Fatalf("a skipped packet has another result: %v", head.err)
		}
	})
}
