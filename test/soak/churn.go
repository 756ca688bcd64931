package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"time"

	"google.golang.org/grpc"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/pki"
	cloudeventsv1 "github.com/hawser-io/hawser/proto/io/cloudevents/v1"
)

const (
	// churnEvery and churnBytes make the broker write 2.5 MB per second. So its store has filled its tables in
	// memory (64 MiB) before growth is measured.
	churnEvery = 40 * time.Millisecond
	churnBytes = 100 << 10
	// churnWorks is the number of works that are changed in turn, of a cluster without an agent.
	churnWorks   = 50
	churnCluster = "soak-agentless"
	publishTime  = 10 * time.Second
)

// churner is a source that publishes many large works.
type churner struct {
	client  cloudeventsv1.CloudEventServiceClient
	payload []byte
	done    int // publishes that were accepted
}

// run publishes until ctx ends. The next version replaces a version that the broker did not accept.
func (c *churner) run(ctx context.Context, dir pki.Dir, addr string) error {
	conn, err := connect(dir, addr, pki.Source, "program")
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // fails only if it is closed already
	c.client = cloudeventsv1.NewCloudEventServiceClient(conn)
	noise := make([]byte, churnBytes*3/4)
	_, _ = rand.Read(noise) // never fails
	c.payload = fmt.Appendf(nil, `{"manifests":[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"churn","namespace":"default"},"data":{"k":%q}}]}`,
		base64.StdEncoding.EncodeToString(noise))
	tick := time.NewTicker(churnEvery)
	defer tick.Stop()
	for n := int32(0); ; n++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		if c.publish(ctx, fmt.Sprintf("churn-%d", n%churnWorks), n+1) == nil {
			c.done++
		}
	}
}

func (c *churner) publish(ctx context.Context, name string, version int32) error {
	ctx, cancel := context.WithTimeout(ctx, publishTime)
	defer cancel()
	id := churnCluster + "-" + name
	_, err := c.client.Publish(ctx, &cloudeventsv1.PublishRequest{Event: &cloudeventsv1.CloudEvent{
		Id: fmt.Sprintf("%s-%d", id, version), Source: "program", SpecVersion: "1.0", Type: bundles + ".spec.update_request",
		Attributes: map[string]*attribute{
			"contenttype": text("application/json"), "ce-clustername": text(churnCluster), "ce-originalsource": text(""),
			"ce-resourceid": text(id), "ce-logtracing": text("{}"),
			"ce-resourceversion": {Attr: &cloudeventsv1.CloudEvent_CloudEventAttributeValue_CeInteger{CeInteger: version}},
			"ce-metadata":        text(fmt.Sprintf(`{"name":%q,"namespace":%q,"uid":%q,"generation":%d}`, name, churnCluster, id, version)),
		},
		Data: &cloudeventsv1.CloudEvent_BinaryData{BinaryData: c.payload},
	}})
	return err
}

type attribute = cloudeventsv1.CloudEvent_CloudEventAttributeValue

func text(s string) *attribute {
	return &attribute{Attr: &cloudeventsv1.CloudEvent_CloudEventAttributeValue_CeString{CeString: s}}
}

// connect opens a connection with the certificate of (role, name).
func connect(dir pki.Dir, addr string, role pki.Role, name string) (*grpc.ClientConn, error) {
	files := identity.Files{CA: dir.CACert(), Cert: dir.Cert(role, name), Key: dir.Key(role, name)}
	creds, err := files.Client("", func(error) {}) // the files do not change
	if err != nil {
		return nil, err
	}
	return grpc.NewClient(addr, grpc.WithTransportCredentials(creds))
}
