//go:build linux

package attack

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

const (
	// viewer is the name of the client that lists without end.
	viewer = "nosy"
	// manyWorks is the number of listed works, on clusters of their own.
	manyWorks = 20_000
	// viewers is the number of concurrent lists, all of one identity.
	viewers = 16
)

// TestViewers: viewers that list everything repeatedly are served after publishes.
func TestViewers(t *testing.T) { attack(t, "viewers") }

// prepared are the preparations of attacks.
var prepared = map[string]func(s *stage){"viewers": (*stage).fill}

// fill publishes many works, as the source.
func (s *stage) fill() {
	s.t.Helper()
	f := &fleet{addr: s.addr, files: s.pki}
	c, err := f.dial(s.t.Context(), pki.Source, source)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = c.Close() }() // the broker has stored all acknowledged works
	var wg sync.WaitGroup
	const side = 64
	for n := range side {
		wg.Go(func() {
			for i := n; i < manyWorks && !s.t.Failed(); i += side {
				if err := publishOne(s.t.Context(), c, i); err != nil {
					s.t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if s.t.Failed() {
		s.t.FailNow()
	}
}

func publishOne(ctx context.Context, c transport.Conn, i int) error {
	name, id := fmt.Sprintf("filled-%d", i%50), fmt.Sprintf("filled-%d", i)
	e, err := codec.Builder{
		ID: strconv.Itoa(i), Time: time.Now(), Source: source, Cluster: name,
		Type:        codec.EventType{DataType: codec.ManifestBundles, Subresource: codec.Spec, Action: codec.CreateRequest}.String(),
		ContentType: codec.ContentTypeJSON, Data: []byte(`{"manifests":[]}`),
		Extensions: map[string]any{
			codec.ExtResourceID: id, codec.ExtResourceVersion: 1, codec.ExtMetadata: fmt.Sprintf(`{"name":%q,"namespace":%q}`, id, name),
		},
	}.Event()
	if err == nil {
		_, err = c.Publish(ctx, e, "")
	}
	return err
}

// view lets many viewers request all works, and the next page if there is one, without a pause. They pause only
// when there are too many lists already.
func view(ctx context.Context, t target) error {
	pair, err := tls.LoadX509KeyPair(t.pki.Cert(pki.Viewer, viewer), t.pki.Key(pki.Viewer, viewer))
	if err != nil {
		return err
	}
	config := t.config(false)
	config.Certificates = []tls.Certificate{pair}
	return sideBySide(ctx, viewers, again, func(ctx context.Context) error {
		if !t.real { // the sink answers nothing
			c, err := t.secure(ctx, config)
			if err == nil {
				hold(ctx, c)
			}
			return err
		}
		cc, err := grpc.NewClient("passthrough:///"+t.addr, grpc.WithTransportCredentials(credentials.NewTLS(config)))
		if err != nil {
			return err
		}
		defer cc.Close()
		for token := ""; ctx.Err() == nil; {
			if token, err = listPage(ctx, t, hawserv1.NewAdminServiceClient(cc), token); err == nil {
				continue
			}
			if status.Code(err) != codes.ResourceExhausted {
				return err
			}
			t.load.add("lists refused", 1)
			wait, stop := context.WithTimeout(ctx, 50*time.Millisecond)
			<-wait.Done()
			stop()
		}
		return nil
	})
}

// listPage reads one page and returns the token of the next.
func listPage(ctx context.Context, t target, c hawserv1.AdminServiceClient, token string) (next string, err error) {
	s, err := c.ListWorks(ctx, &hawserv1.ListWorksRequest{PageToken: token})
	for err == nil {
		var w *hawserv1.ListWorksResponse
		if w, err = s.Recv(); err == nil {
			t.load.add("works listed", 1)
			next = w.GetNextPageToken()
		}
	}
	if errors.Is(err, io.EOF) {
		t.load.add("lists", 1)
		return next, nil
	}
	return token, err
}
