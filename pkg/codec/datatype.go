package codec

import (
	"maps"
	"slices"
	"strings"
)

// ManifestBundles is the data type of ManifestWorks.
var ManifestBundles = DataType{Group: "io.open-cluster-management.works", Version: "v1alpha1", Resource: "manifestbundles"}

// Senders is a set of the two kinds of clients that events come from.
type Senders uint8

// The kinds of clients.
const (
	FromSource Senders = 1 << iota
	FromAgent
)

// Has reports whether p contains all of q. It returns false if q is empty.
func (p Senders) Has(q Senders) bool { return q != 0 && p&q == q }

// VersionForm is the wire form of the resourceversion attribute of a data type. In memory a version is always
// an int64.
type VersionForm uint8

// The forms.
const (
	// VersionInteger: a CloudEvents integer (int32) or its decimal text.
	VersionInteger VersionForm = iota + 1
	// VersionString: decimal text of an int64.
	VersionString
)

// Row holds the protocol rules of one data type.
type Row struct {
	DataType DataType
	// SpecFrom and StatusFrom are the senders of each subresource; the other kind of client receives it.
	SpecFrom, StatusFrom Senders
	// Owner is the kind of client that owns records of the type.
	Owner Senders
	// Durable: the store keeps accepted events. Otherwise the broker only passes them to the current subscribers.
	Durable bool
	// Version is the form of resourceversion on the wire.
	Version VersionForm
}

// dataTypes has one row per data type. A type without a row is not served.
var dataTypes = map[DataType]Row{
	ManifestBundles: {
		DataType:   ManifestBundles,
		SpecFrom:   FromSource,
		StatusFrom: FromAgent,
		Owner:      FromSource,
		Durable:    true,
		Version:    VersionInteger,
	},
}

// Lookup returns the row of a data type. A broker rejects a type without a row as invalid.
func Lookup(d DataType) (Row, bool) {
	r, ok := dataTypes[d]
	return r, ok
}

// DataTypes returns the data types that have a row, sorted by name.
func DataTypes() []DataType {
	return slices.SortedFunc(maps.Keys(dataTypes), func(a, b DataType) int { return strings.Compare(a.String(), b.String()) })
}
