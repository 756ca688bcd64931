package mqtt

import "github.com/eclipse/paho.golang/packets"

// publishSize returns how many bytes a PUBLISH of ours takes on the wire. paho does not look at
// the broker's Maximum Packet Size.
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

// lengthSize returns how many bytes a length takes.
func lengthSize(n int) (size int) {
	for size = 1; n >= 0x80; size++ {
		n >>= 7
	}
	return size
}
