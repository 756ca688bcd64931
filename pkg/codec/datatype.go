package codec

import (
	"maps"
	"slices"
	"strings"
)

// ManifestBundles is the data type of ManifestWorks.
var ManifestBundles = DataType{Group: "io.open-cluster-management.works", Version: "v1alpha1", Resource: "manifestbundles"}

// Senders is a set of the two kinds of parties an event can come from.
type Senders uint8

// The parties.
const (
	FromSource Senders = 1 << iota
	FromAgent
)

// Has reports whether every party of q is in p; false when q is empty.
func (p Senders) Has(q Senders) bool { return q != 0 && p&q == q }

// VersionForm is how the resourceversion attribute of a data type looks on the
// wire. Inside, a version is always an int64.
type VersionForm uint8

// The forms.
const (
	// VersionInteger: a CloudEvents integer (int32) or its decimal text.
	VersionInteger VersionForm = iota + 1
	// VersionString: decimal text of an int64.
	VersionString
)

// Row is what the protocol says about one data type.
type Row struct {
	DataType DataType
	// SpecFrom and StatusFrom are the parties that may publish that
	// subresource; the other party receives it.
	SpecFrom, StatusFrom Senders
	// Owner is the party that owns records of the type.
	Owner Senders
	// Durable: accepted events are kept in the store. Otherwise they are only
	// passed through to whoever is subscribed.
	Durable bool
	// Version is the form of resourceversion on the wire.
	Version VersionForm
}

// dataTypes is the table of data types: one row per data type. A type without a
// row is not served.
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

// Lookup returns the row of a data type. A broker refuses a type that has none
// as invalid.
func Lookup(d DataType) (Row, bool) {
	r, ok := dataTypes[d]
	return r, ok
}

// DataTypes returns the data types that have a row, in the order of their
// names.
func DataTypes() []DataType {
	return slices.SortedFunc(maps.Keys(dataTypes), func(a, b DataType) int { return strings.Compare(a.String(), b.String()) })
}
