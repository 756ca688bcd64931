package manifestwork

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/pkg/codec"
)

// FuzzDecodeSpec reads any metadata, version, tracing and data.
func FuzzDecodeSpec(f *testing.F) {
	e := encodeSpecT(f, testWork(), params(codec.CreateRequest))
	metadata, _, err := codec.StringExtension(e, codec.ExtMetadata)
	if err != nil {
		f.Fatal(err)
	}
	f.Add("3", metadata, `{"logging.open-cluster-management.io/op-id":"op1"}`, false, e.Data())
	f.Add("0", `{"generation":8589934592}`, "", true, []byte(`{"manifests":[null,5,{"metadata":{"generateName":"a"}}],"executer":null}`))
	f.Add("7.9", "", "x", false, []byte{})
	f.Fuzz(func(t *testing.T, version, metadata, tracing string, deleting bool, data []byte) {
		e := minimal()
		e.SetExtension(codec.ExtResourceVersion, version)
		e.SetExtension(codec.ExtMetadata, metadata)
		e.SetExtension(codec.ExtLogTracing, tracing)
		if deleting {
			e.SetExtension(codec.ExtDeletionTimestamp, testTime)
		}
		e.DataEncoded = data
		s, err := DecodeSpec(e)
		var invalid *InvalidError
		if err != nil && !errors.As(err, &invalid) {
			if s != nil {
				t.Fatalf("a spec together with %v", err)
			}
			return
		}
		if s.ResourceID != "u1" || s.Cluster != "cluster1" || s.Name == "" || s.Work.Name != s.Name || string(s.Work.UID) != "u1" || s.Work.Namespace != "cluster1" || s.Version < 0 {
			t.Fatalf("identity %+v", s)
		}
		checkBrokerAgrees(t, e, s)
		if s.Deleting != deleting || (s.Work.DeletionTimestamp != nil) != deleting {
			t.Fatalf("deleting %v: %+v", deleting, s)
		}
		if err == nil && !deleting && len(s.Work.Spec.Workload.Manifests) == 0 {
			t.Fatal("a work without manifests is valid")
		}
		if s.Generation < 0 {
			return
		}
		if _, err := codec.Marshal(e); err == nil { // otherwise no client can send it
			r, err := DecodeStatus(encodeStatusT(t, s.Ref, fullStatus(), statusParams()))
			if err != nil || r.ResourceID != "u1" || r.Version != s.Generation {
				t.Fatalf("the report about %+v: %+v, %v", s, r, err)
			}
		}
		if err == nil {
			checkSpecAgain(t, s)
		}
	})
}

// checkBrokerAgrees checks that a broker reads an accepted event like the agent. The broker distinguishes works
// by name and orders them by version.
func checkBrokerAgrees(t *testing.T, e codec.Event, s *Spec) {
	t.Helper()
	b, err := codec.Marshal(e)
	if err != nil {
		return // not UTF-8: no client can send it
	}
	env, err := codec.ParseEnvelope(b)
	if err != nil {
		return
	}
	name := env.ObjectName
	if name == "" {
		name = env.ResourceID
	}
	m, err := parseMetadata(env.RawMetadata)
	if err != nil {
		return // the agent reports the work as invalid, under its id
	}
	if name != s.Name || env.ObjectNS != m.Namespace || env.ObjectUID != string(m.UID) || env.Version != s.Version || env.ObjectGen != m.Generation || env.Deleting != s.Deleting {
		t.Fatalf("the broker reads %+v, the agent %+v", env, s)
	}
}

// checkSpecAgain encodes the decoded work and decodes it again; nothing may change.
func checkSpecAgain(t *testing.T, s *Spec) {
	t.Helper()
	p := params(codec.UpdateRequest)
	p.DeletionWithData = s.HasData
	e, err := EncodeSpec(s.Work, p)
	if err != nil {
		t.Fatalf("cannot be encoded again: %v", err)
	}
	again, err := DecodeSpec(e)
	if err != nil {
		t.Fatalf("cannot be decoded again: %v", err)
	}
	want, err := json.Marshal(s.Work)
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(again.Work)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Fatalf("(-want +got):\n%s", d)
	}
}

// FuzzDecodeStatus decodes any metadata and data. Broker and source must agree whether it is the last report.
func FuzzDecodeStatus(f *testing.F) {
	p := statusParams()
	p.Deleted = true
	for _, status := range []codec.Event{
		encodeStatusT(f, testRef(), fullStatus(), p),
		encodeStatusT(f, Ref{ResourceID: "u1", Cluster: "c"}, fullStatus(), statusParams()),
	} {
		metadata, _, err := codec.StringExtension(status, codec.ExtMetadata)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(metadata, status.Data())
	}
	f.Add("", []byte(`{"conditions":[{"type":"Deleted","status":"False"},{"Type":"Deleted","STATUS":"True"}]}`))
	f.Fuzz(func(t *testing.T, metadata string, data []byte) {
		e := encodeStatusT(t, testRef(), fullStatus(), statusParams())
		e.SetExtension(codec.ExtMetadata, metadata)
		e.DataEncoded = data
		r, err := DecodeStatus(e)
		if err != nil {
			return
		}
		deleted, err := codec.ReportsDeleted(data)
		if err != nil || deleted != r.Deleted {
			t.Fatalf("broker: deleted %v, %v; source: %v", deleted, err, r.Deleted)
		}
		again, err := EncodeStatus(Ref{ResourceID: r.ResourceID, Name: r.Name, Cluster: r.Cluster, Generation: r.Version}, r.Status, statusParams())
		if err != nil {
			t.Fatalf("cannot be encoded again: %v", err)
		}
		r2, err := DecodeStatus(again)
		if err != nil {
			t.Fatalf("cannot be decoded again: %v", err)
		}
		hash, err := StatusHash(r2.Status)
		if err != nil || hash != r2.Hash {
			t.Fatalf("hash %s, sent as %s, %v", hash, r2.Hash, err)
		}
	})
}
