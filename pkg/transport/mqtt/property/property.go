// Package property is what Hawser says in MQTT packets beside the events: the user properties
// of CONNACK, SUBSCRIBE, SUBACK, PUBLISH and PUBACK, and the reason codes. Both ends use it, so
// that each name and each form is written in one place.
//
// The names are those of gRPC's headers (the codec.Header constants), and of the fields of an
// error here. What is missing or cannot be read is as good as not said: stock brokers and
// stock parties say nothing of it.
package property

import (
	"strconv"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// DataType is the user property of a SUBSCRIBE that names the data type; absent, it is
// codec.ManifestBundles.
const DataType = "hawser-data-type"

// Get returns the value of the property key, "" unless it is there exactly once.
func Get(properties []codec.Property, key string) string {
	value, n := "", 0
	for _, p := range properties {
		if p.Key == key {
			value, n = p.Value, n+1
		}
	}
	if n != 1 {
		return ""
	}
	return value
}

// add appends key with a value that is not "".
func add(to []codec.Property, key, value string) []codec.Property {
	if value == "" {
		return to
	}
	return append(to, codec.Property{Key: key, Value: value})
}

// Announcement is what the CONNACK of a Hawser broker says.
type Announcement struct {
	// StoreID is the identity of its store.
	StoreID string
	// MaxEventBytes is the largest event it takes, 0 if it does not say.
	MaxEventBytes int
}

// Properties returns a as a CONNACK says it.
func (a Announcement) Properties() []codec.Property {
	p := []codec.Property{{Key: codec.HeaderProtocol, Value: strconv.Itoa(transport.Protocol)}}
	p = add(p, codec.HeaderStoreID, a.StoreID)
	return add(p, codec.HeaderMaxEventBytes, number(a.MaxEventBytes))
}

// Announced reads a CONNACK. ok is false when no Hawser broker wrote it: nothing of what this
// package knows may be put on any packet but PUBLISH then, as some brokers refuse that.
func Announced(properties []codec.Property) (a Announcement, ok bool) {
	if !transport.SpeaksHawser(Get(properties, codec.HeaderProtocol)) {
		return Announcement{}, false
	}
	return Announcement{
		StoreID:       Get(properties, codec.HeaderStoreID),
		MaxEventBytes: positive(Get(properties, codec.HeaderMaxEventBytes)),
	}, true
}

// Hello returns what a party says in a SUBSCRIBE: nothing if it is a stock one.
func Hello(h transport.Hello, d codec.DataType) []codec.Property {
	var p []codec.Property
	if d != codec.ManifestBundles {
		p = add(p, DataType, d.String())
	}
	if h.Protocol == 0 {
		return p
	}
	p = add(p, codec.HeaderProtocol, strconv.Itoa(h.Protocol))
	p = add(p, codec.HeaderCursor, h.Cursor)
	p = add(p, codec.HeaderClusterUID, h.ClusterUID)
	return add(p, codec.HeaderVersion, h.Version)
}

// HelloOf reads a SUBSCRIBE. The data type is as it arrived, and codec.ManifestBundles if
// there is none.
func HelloOf(properties []codec.Property) (h transport.Hello, dataType string) {
	dataType = Get(properties, DataType)
	if dataType == "" {
		dataType = codec.ManifestBundles.String()
	}
	if !transport.SpeaksHawser(Get(properties, codec.HeaderProtocol)) {
		return transport.Hello{}, dataType
	}
	return transport.Hello{
		Protocol:   transport.Protocol,
		Cursor:     Get(properties, codec.HeaderCursor),
		ClusterUID: Get(properties, codec.HeaderClusterUID),
		Version:    Get(properties, codec.HeaderVersion),
	}, dataType
}

// Accepted returns what a SUBACK says.
func Accepted(a transport.Accepted) []codec.Property {
	p := add(nil, codec.HeaderSubscriptionID, a.SubscriptionID)
	if a.Protocol == 0 {
		return p
	}
	p = add(p, codec.HeaderProtocol, strconv.Itoa(a.Protocol))
	p = add(p, codec.HeaderResync, a.Resync)
	p = add(p, codec.HeaderStoreID, a.StoreID)
	return add(p, codec.HeaderMaxEventBytes, number(a.MaxEventBytes))
}

// AcceptedOf reads a SUBACK. Roots, Plain and Transport are not said in it.
func AcceptedOf(properties []codec.Property) transport.Accepted {
	a := transport.Accepted{
		SubscriptionID: Get(properties, codec.HeaderSubscriptionID),
		Resync:         Get(properties, codec.HeaderResync),
		StoreID:        Get(properties, codec.HeaderStoreID),
		MaxEventBytes:  positive(Get(properties, codec.HeaderMaxEventBytes)),
	}
	if transport.SpeaksHawser(Get(properties, codec.HeaderProtocol)) {
		a.Protocol = transport.Protocol
	}
	return a
}

// SubscriptionID returns the property of a PUBLISH by which a Hawser party names the
// subscription it belongs to; nothing for "".
func SubscriptionID(id string) []codec.Property {
	return add(nil, codec.HeaderSubscriptionID, id)
}

// SubscriptionIDOf reads a PUBLISH.
func SubscriptionIDOf(properties []codec.Property) string {
	return Get(properties, codec.HeaderSubscriptionID)
}

// Receipt returns what the PUBACK of a Hawser broker says.
func Receipt(r transport.Receipt) []codec.Property {
	p := add(nil, codec.HeaderOutcome, r.Outcome)
	if r.Revision > 0 {
		p = add(p, codec.HeaderRevision, strconv.FormatUint(r.Revision, 10))
	}
	return p
}

// ReceiptOf reads a PUBACK.
func ReceiptOf(properties []codec.Property) transport.Receipt {
	r := transport.Receipt{Outcome: Get(properties, codec.HeaderOutcome)}
	if n, err := strconv.ParseUint(Get(properties, codec.HeaderRevision), 10, 64); err == nil {
		r.Revision = n
	}
	return r
}

// number is the text of a positive number, "" of any other.
func number(n int) string {
	if n <= 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// positive reads a decimal number of 31 bits; what is missing or wrong is 0, unknown.
func positive(s string) int {
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n < 0 {
		return 0
	}
	return int(n)
}
