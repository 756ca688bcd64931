package mqtt

import "github.com/eclipse/paho.golang/packets"

// publishSize returns the size of an outgoing PUBLISH on the wire, in bytes. paho does not check the broker's
// Maximum Packet Size.
func publishSize(p *packets.Publish) int {
	properties := 0
	if p.Properties != nil {
		if p.Properties.ContentType != "" {
			properties += 1 + 2 + len(p.Properties.ContentType)
		}
		for i := range p.Properties.User {
			properties += 1 + 2 + len(p.Properties.User[i].Key) + 2 + len(p.Properties.User[i].Value)
		}
	}
	body := 2 + len(p.Topic) + lengthSize(properties) + properties + len(p.Payload)
	if p.QoS > 0 {
		body += 2
	}
	return 1 + lengthSize(body) + body
}

// lengthSize returns the size of an encoded length, in bytes.
func lengthSize(n int) (size int) {
	for size = 1; n >= 0x80; size++ {
		n >>= 7
	}
	return size
}
