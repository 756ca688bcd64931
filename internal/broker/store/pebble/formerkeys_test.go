package pebble

import (
	"github.com/hawser-io/hawser/internal/broker/store/value"
	"github.com/hawser-io/hawser/pkg/codec"
)

// formerClusterKey returns the storage key of a binding before format 4.
func formerClusterKey(dt codec.DataType, cluster string) []byte {
	return value.AppendParts([]byte{keyFormerCluster}, cluster, dt.Group, dt.Version, dt.Resource)
}
