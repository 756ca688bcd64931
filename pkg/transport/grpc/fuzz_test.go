package grpc

import (
	"strings"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"

	"github.com/hawser-io/hawser/pkg/codec"
)

// FuzzReceived reads any bytes as the header and as a message of a broker's stream.
func FuzzReceived(f *testing.F) {
	f.Add("1048576", codec.Heartbeat("h1"))
	f.Add("-1", []byte{0x0a, 0x02, 'e', '1'})
	f.Add("99999999999999999999", []byte{})
	f.Add("1048576\n1048576", []byte{0xff})
	f.Fuzz(func(t *testing.T, header string, message []byte) {
		md := metadata.MD{}
		values := strings.Split(header, "\n")
		md.Append(codec.HeaderMaxEventBytes, values...)
		limit := positive(single(md, codec.HeaderMaxEventBytes))
		if limit < 0 || limit > 0 && len(values) > 1 {
			t.Errorf("limit %d of %q", limit, values)
		}
		var r received
		if err := (raw{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(message)}, &r); err != nil {
			t.Fatal(err)
		}
		e, heartbeat, err := r.next()
		if heartbeat && (err != nil || e.Type() != "") || !heartbeat && err == nil && e.Validate() != nil {
			t.Errorf("heartbeat %v, %v, event %v", heartbeat, err, e)
		}
	})
}
