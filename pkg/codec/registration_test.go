package codec

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// TestRegistration_AllowedRequests checks the table of ocm-protocol: which events agents may publish of each
// type, and which of them without a certificate.
func TestRegistration_AllowedRequests(t *testing.T) {
	may := map[string]string{ // allowed senders by type and verb
		"cluster.open-cluster-management.io.v1.managedclusters.spec.create_request":            "both",
		"cluster.open-cluster-management.io.v1.managedclusters.spec.resync_request":            "both",
		"cluster.open-cluster-management.io.v1.managedclusters.status.update_request":          "agent",
		"certificates.k8s.io.v1.certificatesigningrequests.spec.create_request":                "both",
		"certificates.k8s.io.v1.certificatesigningrequests.spec.resync_request":                "both",
		"coordination.k8s.io.v1.leases.spec.update_request":                                    "agent",
		"coordination.k8s.io.v1.leases.spec.resync_request":                                    "agent",
		"events.k8s.io.v1.events.spec.create_request":                                          "agent",
		"events.k8s.io.v1.events.spec.update_request":                                          "agent",
		"addon.open-cluster-management.io.v1alpha1.managedclusteraddons.status.update_request": "agent",
		"addon.open-cluster-management.io.v1alpha1.managedclusteraddons.spec.resync_request":   "agent",
		"addon.open-cluster-management.io.v1beta1.managedclusteraddons.status.update_request":  "agent",
		"addon.open-cluster-management.io.v1beta1.managedclusteraddons.spec.resync_request":    "agent",
		"authentication.k8s.io.v1.tokenrequests.spec.create_request":                           "agent",
		"authentication.k8s.io.v1.tokenrequests.spec.resync_request":                           "agent",
	}
	walked := 0
	for _, d := range RegistrationTypes() {
		row, ok := Registration(d)
		if !ok || row.DataType != d {
			t.Fatalf("%s has the row %+v", d, row)
		}
		if _, ok := Lookup(d); ok {
			t.Errorf("%s is kept in the store too", d)
		}
		for _, s := range []Subresource{Spec, Status} {
			for _, a := range []Action{CreateRequest, UpdateRequest, DeleteRequest, ResyncRequest, ResyncResponse, "anything"} {
				e := EventType{d, s, a}
				client := may[e.String()]
				if client != "" {
					walked++
				}
				if got := row.MayPublish(e, false); got != (client != "") {
					t.Errorf("%s by an agent: %v", e, got)
				}
				if got := row.MayPublish(e, true); got != (client == "both") {
					t.Errorf("%s without a certificate: %v", e, got)
				}
			}
		}
	}
	if walked != len(may) {
		t.Errorf("%d of %d rows of the table were walked", walked, len(may))
	}
	if _, ok := Registration(ManifestBundles); ok {
		t.Error("works are taken for registration")
	}
}

func TestRegistrationEvents_RoundTrip(t *testing.T) {
	p := SyncParams{ID: "1", Source: "hub", Time: time.Unix(7, 0)}
	objects := &hawserv1.RegistrationObjects{SnapshotComplete: true, Objects: []*hawserv1.RegistrationObject{{
		DataType: ManagedClusters.String(), Cluster: "c1", Name: "c1", Uid: "u", ResourceVersion: "7", Json: []byte(`{}`), ManagedClusterStatus: &hawserv1.ManagedClusterStatus{Accepted: true},
	}}}
	check := func(e Event, err error, read func(Event) (proto.Message, error), want proto.Message) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		b, err := Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		env, err := ParseEnvelope(b)
		if err != nil || env.RawType != e.Type() || env.Type != (EventType{}) || !RegistrationEvent(env.RawType) {
			t.Fatalf("envelope of %s: %+v, %v", e.Type(), env, err)
		}
		got, err := read(env.SyncEvent())
		if err != nil || !proto.Equal(got, want) {
			t.Errorf("%v became %v, %v", want, got, err)
		}
		wrong := env.SyncEvent()
		wrong.SetType(TypeAck)
		if _, err := read(wrong); err == nil {
			t.Error("another type of event was read as", e.Type())
		}
	}
	e, err := NewRegistrationObjects(p, objects)
	check(e, err, func(e Event) (proto.Message, error) { return ParseRegistrationObjects(e) }, objects)
	request := &hawserv1.RegistrationRequest{Id: "r", Request: &hawserv1.RegistrationRequest_AgentRequest{AgentRequest: &hawserv1.AgentRequest{Event: []byte("e"), User: "u"}}}
	e, err = NewRegistrationRequest(p, request)
	check(e, err, func(e Event) (proto.Message, error) { return ParseRegistrationRequest(e) }, request)
	answer := &hawserv1.RegistrationAnswer{Id: "r", Error: []byte("{}")}
	e, err = NewRegistrationAnswer(p, answer)
	check(e, err, func(e Event) (proto.Message, error) { return ParseRegistrationAnswer(e) }, answer)
	keys := &hawserv1.RegistrationKeys{Issuer: "i", Jwks: []byte("{}")}
	e, err = NewRegistrationKeys(p, keys)
	check(e, err, func(e Event) (proto.Message, error) { return ParseRegistrationKeys(e) }, keys)
}

func TestRegistrationObjects_RejectsUnknownScope(t *testing.T) {
	for what, o := range map[string]*hawserv1.RegistrationObject{
		"a work":                 {DataType: ManifestBundles.String(), Cluster: "c", Name: "n"},
		"no type":                {Cluster: "c", Name: "n"},
		"an Event":               {DataType: KubeEvents.String(), Cluster: "c", Name: "n"},
		"a token":                {DataType: TokenRequests.String(), Cluster: "c", Name: "n"},
		"no cluster":             {DataType: Leases.String(), Name: "n"},
		"no name":                {DataType: Leases.String(), Cluster: "c"},
		"another ManagedCluster": {DataType: ManagedClusters.String(), Cluster: "c", Name: "n"},
		"an unprintable name":    {DataType: Leases.String(), Cluster: "c", Name: "n\x00"},
	} {
		e, err := NewRegistrationObjects(SyncParams{ID: "1", Source: "hub", Time: time.Unix(7, 0)}, &hawserv1.RegistrationObjects{Objects: []*hawserv1.RegistrationObject{o}})
		if err != nil {
			t.Fatal(err)
		}
		if m, err := ParseRegistrationObjects(e); err == nil {
			t.Errorf("%s was taken: %v", what, m)
		}
	}
}

func TestAPIError(t *testing.T) {
	got := APIError{Code: 409, Reason: "AlreadyExists", Message: `managedclusters "c1" already exists`}.Text()
	want := `{"ErrStatus":{"metadata":{},"status":"Failure","code":409,"reason":"AlreadyExists","message":"managedclusters \"c1\" already exists"}}`
	if got != want {
		t.Errorf("got\n%s, want\n%s", got, want)
	}
	for _, message := range []string{"text", strings.Repeat("ü", 4000), strings.Repeat("\x00\"", 4000), strings.Repeat("<", 4000), "\xff\xfe"} {
		text := APIError{Code: 500, Reason: "InternalError", Message: message}.Text()
		e, ok := ParseAPIError(text)
		if !ok || e.Code != 500 || e.Reason != "InternalError" || len(text) > 1024 || len(message) > 1000 && len(text) < 600 {
			t.Errorf("%.40q became %d bytes, %+v, %v", message, len(text), e, ok)
		}
		if text := (APIError{Code: 500, Reason: message, Message: message}).Text(); len(text) > 1024 || !json.Valid([]byte(text)) {
			t.Errorf("%.40q as a reason became %d bytes", message, len(text))
		}
	}
	for _, text := range []string{"", "access denied", "{}", `{"ErrStatus":null}`, `{"ErrStatus":7}`} {
		if e, ok := ParseAPIError(text); ok {
			t.Errorf("%q was read as %+v", text, e)
		}
	}
	if e := ParseAPIStatus([]byte(`{"kind":"Status","code":403,"reason":"Forbidden","message":"no"}`)); e != (APIError{Code: 403, Reason: "Forbidden", Message: "no"}) {
		t.Errorf("got %+v", e)
	}
	later := ParseAPIStatus([]byte(`{"code":429,"reason":"TooManyRequests","details":{"name":"n","retryAfterSeconds":5}}`))
	if again, ok := ParseAPIError(later.Text()); !ok || again.Details.RetryAfterSeconds != 5 || !strings.Contains(later.Text(), `"details":{"retryAfterSeconds":5}`) {
		t.Errorf("a delay became %s", later.Text())
	}
	for _, text := range []string{"", "null", "{}", "[", `{"code":"x"}`} {
		if e := ParseAPIStatus([]byte(text)); e.Code != 500 {
			t.Errorf("%q was read as %+v", text, e)
		}
	}
}

// FuzzParseRegistration parses any bytes as each payload between the broker and the source.
func FuzzParseRegistration(f *testing.F) {
	for _, m := range []proto.Message{
		&hawserv1.RegistrationObjects{Objects: []*hawserv1.RegistrationObject{{DataType: Leases.String(), Cluster: "c", Name: "n"}}},
		&hawserv1.RegistrationRequest{Request: &hawserv1.RegistrationRequest_Renewals{Renewals: &hawserv1.LeaseRenewals{Renewals: []*hawserv1.LeaseRenewal{{Cluster: "c"}}}}},
		&hawserv1.RegistrationAnswer{Id: "1", Review: &hawserv1.TokenReviewResult{Groups: []string{"g"}}},
		&hawserv1.RegistrationKeys{Issuer: "i"},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		e := withExtension("x", "")
		e.SetDataContentType(ContentTypeProtobuf)
		e.DataEncoded = data
		e.SetType(TypeRegistrationObjects)
		if m, err := ParseRegistrationObjects(e); err == nil {
			for _, o := range m.GetObjects() {
				if d, err := ParseDataType(o.GetDataType()); err != nil || o.GetCluster() == "" || o.GetName() == "" || d == ManifestBundles {
					t.Fatalf("took %v", o)
				}
			}
		}
		e.SetType(TypeRegistrationRequest)
		if m, err := ParseRegistrationRequest(e); err == nil && m == nil {
			t.Fatal("no message and no error")
		}
		e.SetType(TypeRegistrationAnswer)
		if m, err := ParseRegistrationAnswer(e); err == nil {
			if text := ParseAPIStatus(m.GetError()).Text(); !json.Valid([]byte(text)) {
				t.Fatalf("%q is not JSON", text)
			}
		}
		if refusal, ok := ParseAPIError(string(data)); ok && !json.Valid([]byte(refusal.Text())) {
			t.Fatalf("%+v is not written as JSON", refusal)
		}
		e.SetType(TypeRegistrationKeys)
		if m, err := ParseRegistrationKeys(e); err == nil && m == nil {
			t.Fatal("no message and no error")
		}
	})
}
