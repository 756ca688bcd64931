// Package property is the Hawser content of MQTT packets beside the events: user properties of CONNACK,
// SUBSCRIBE, SUBACK, PUBLISH and PUBACK, and the reason codes. Client and broker both use it, so that each name
// and form has one definition.
//
// The names are those of gRPC's headers (the codec.Header constants), plus the fields of an error. A missing or
// invalid value counts as absent: OCM brokers and OCM clients send none.
package property

import (
	"cmp"
	"strconv"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// DataType is the user property of a SUBSCRIBE that names the data type; without it, codec.ManifestBundles
// applies.
const DataType = "hawser-data-type"

// Get returns the value of the property key, "" unless it occurs exactly once.
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

// add appends key with value, unless value is "".
func add(to []codec.Property, key, value string) []codec.Property {
	if value == "" {
		return to
	}
	return append(to, codec.Property{Key: key, Value: value})
}

// Announcement is the content of a Hawser broker's CONNACK.
type Announcement struct {
	// StoreID is the identity of the broker's store.
	StoreID string
	// MaxEventBytes is the largest event that the broker accepts, in bytes, 0 if unknown.
	MaxEventBytes int
}

// Properties returns a as properties of a CONNACK.
func (a Announcement) Properties() []codec.Property {
	p := []codec.Property{{Key: codec.HeaderProtocol, Value: strconv.Itoa(transport.Protocol)}}
	p = add(p, codec.HeaderStoreID, a.StoreID)
	return add(p, codec.HeaderMaxEventBytes, number(a.MaxEventBytes))
}

// Announced reads a CONNACK. ok is false if no Hawser broker wrote it. Then only PUBLISH may carry the
// properties of this package, because some brokers reject them elsewhere.
func Announced(properties []codec.Property) (a Announcement, ok bool) {
	if !transport.SpeaksHawser(Get(properties, codec.HeaderProtocol)) {
		return Announcement{}, false
	}
	return Announcement{
		StoreID:       Get(properties, codec.HeaderStoreID),
		MaxEventBytes: positive(Get(properties, codec.HeaderMaxEventBytes)),
	}, true
}

// Hello returns the client's properties of a SUBSCRIBE, none for an OCM client.
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
	p = add(p, codec.HeaderVersion, h.Version)
	return add(p, codec.HeaderFormer, h.Former)
}

// HelloOf reads a SUBSCRIBE. The data type is unchecked; without one it is codec.ManifestBundles.
func HelloOf(properties []codec.Property) (h transport.Hello, dataType string) {
	dataType = cmp.Or(Get(properties, DataType), codec.ManifestBundles.String())
	if !transport.SpeaksHawser(Get(properties, codec.HeaderProtocol)) {
		return transport.Hello{}, dataType
	}
	return transport.Hello{
		Protocol:   transport.Protocol,
		Cursor:     Get(properties, codec.HeaderCursor),
		ClusterUID: Get(properties, codec.HeaderClusterUID),
		Version:    Get(properties, codec.HeaderVersion),
		Former:     Get(properties, codec.HeaderFormer),
	}, dataType
}

// Accepted returns the properties of a SUBACK.
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

// AcceptedOf reads a SUBACK. It does not contain Roots, Stateless and Transport.
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

// SubscriptionID returns the property of a PUBLISH with which a Hawser client names its subscription; none for
// "".
func SubscriptionID(id string) []codec.Property {
	return add(nil, codec.HeaderSubscriptionID, id)
}

// SubscriptionIDOf returns the subscription id in a PUBLISH, "" if there is none.
func SubscriptionIDOf(properties []codec.Property) string {
	return Get(properties, codec.HeaderSubscriptionID)
}

// Receipt returns the properties of a Hawser broker's PUBACK.
func Receipt(r transport.Receipt) []codec.Property {
	p := add(nil, codec.HeaderOutcome, r.Outcome)
	if r.Revision > 0 {
		p = add(p, codec.HeaderRevision, strconv.FormatUint(r.Revision, 10))
	}
	return p
}

// ReceiptOf returns the receipt in a PUBACK.
func ReceiptOf(properties []codec.Property) transport.Receipt {
	r := transport.Receipt{Outcome: Get(properties, codec.HeaderOutcome)}
	if n, err := strconv.ParseUint(Get(properties, codec.HeaderRevision), 10, 64); err == nil {
		r.Revision = n
	}
	return r
}

// number returns the text of a positive number, "" for any other.
func number(n int) string {
	if n <= 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// positive parses a decimal number of at most 31 bits; it returns 0, unknown, if the text is missing or
// invalid.
func positive(s string) int {
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n < 0 {
		return 0
	}
	return int(n)
}
