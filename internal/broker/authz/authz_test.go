package authz_test

import (
	"fmt"
	"testing"

	"github.com/hawser-io/hawser/internal/broker/authz"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

var (
	agent      = identity.Identity{Role: identity.Agent, Name: "me"}
	source     = identity.Identity{Role: identity.Source, Name: "me"}
	operator   = identity.Identity{Role: identity.Operator, Name: "me"}
	viewer     = identity.Identity{Role: identity.Viewer, Name: "me"}
	joining    = identity.Identity{Role: identity.Bootstrap, Name: "system:serviceaccount:ns:bootstrap"}
	noIdentity = identity.Identity{}
	everyone   = []identity.Identity{agent, source, operator, viewer, joining, noIdentity}
)

// may lists the identities that may make each call in their scope. All others are rejected.
var may = map[string][]identity.Identity{
	authz.Publish + " spec create_request":     {source},
	authz.Publish + " spec update_request":     {source},
	authz.Publish + " spec delete_request":     {source},
	authz.Publish + " spec resync_response":    {source},
	authz.Publish + " spec resync_request":     {agent},
	authz.Publish + " spec anything":           {source},
	authz.Publish + " status create_request":   {agent},
	authz.Publish + " status update_request":   {agent},
	authz.Publish + " status delete_request":   {agent},
	authz.Publish + " status resync_response":  {agent},
	authz.Publish + " status resync_request":   {source},
	authz.Publish + " status anything":         {agent},
	authz.Publish + " " + codec.TypeRelease:    {source},
	authz.Publish + " " + codec.TypeAck:        {agent, source},
	authz.Publish + " " + codec.TypeSyncReport: {source},

	authz.Publish + " " + codec.TypeInventoryRequest: {source},

	authz.Publish + " " + codec.TypeRegistrationObjects: {source},
	authz.Publish + " " + codec.TypeRegistrationAnswer:  {source},
	authz.Publish + " " + codec.TypeRegistrationKeys:    {source},

	authz.Subscribe + " spec":   {agent},
	authz.Subscribe + " status": {source},
	authz.HealthCheck:           {agent, source, operator, viewer, joining},
	authz.HealthList:            {agent, source, operator, viewer, joining},
	authz.HealthWatch:           {agent, source, operator, viewer, joining},
	authz.Reflection:            {agent, source, operator, viewer, joining},
	authz.ReflectionAlpha:       {agent, source, operator, viewer, joining},
	authz.ListClusters:          {operator, viewer},
	authz.ListWorks:             {operator, viewer},
	authz.ListDiscrepancies:     {operator, viewer},
	authz.ListQuotas:            {operator, viewer},
	authz.ForceDeleteWork:       {operator},
	authz.UnbindCluster:         {operator},
	authz.TransferWork:          {operator},
	authz.Approve:               {operator},
	authz.Backup:                {operator},
}

// calls returns each possible call by its name in may. cluster and src are the scope in the payload.
func calls(cluster, src string) map[string]authz.Call {
	actions := []codec.Action{codec.CreateRequest, codec.UpdateRequest, codec.DeleteRequest, codec.ResyncRequest, codec.ResyncResponse, "anything"}
	all := map[string]authz.Call{}
	for _, s := range []codec.Subresource{codec.Spec, codec.Status} {
		t := codec.EventType{DataType: codec.ManifestBundles, Subresource: s}
		for _, a := range actions {
			t.Action = a
			all[fmt.Sprintf("%s %s %s", authz.Publish, s, a)] = authz.Call{Method: authz.Publish, Type: t, Cluster: cluster, Source: src}
		}
	}
	for _, raw := range []string{codec.TypeHeartbeat, codec.TypeCheckpoint, codec.TypeAck, codec.TypeInventoryRequest, codec.TypeInventory, codec.TypeSyncReport, codec.TypeRelease,
		codec.TypeRegistrationRequest, codec.TypeRegistrationObjects, codec.TypeRegistrationAnswer, codec.TypeRegistrationKeys} {
		all[authz.Publish+" "+raw] = authz.Call{Method: authz.Publish, RawType: raw, Cluster: cluster, Source: src}
	}
	for _, m := range []string{
		authz.HealthCheck, authz.HealthList, authz.HealthWatch, authz.Reflection, authz.ReflectionAlpha,
		authz.ListClusters, authz.ListWorks, authz.ListDiscrepancies, authz.ListQuotas, authz.ForceDeleteWork, authz.UnbindCluster, authz.TransferWork, authz.Approve, authz.Backup,
		"/some.Other/Method",
	} {
		all[m] = authz.Call{Method: m}
	}
	return all
}

func allowed(name string, id identity.Identity) bool {
	for _, a := range may[name] {
		if a == id {
			return true
		}
	}
	return false
}

func check(t *testing.T, id identity.Identity, name string, c authz.Call, want bool) {
	t.Helper()
	err := authz.Authorize(id, c)
	switch {
	case want && err != nil:
		t.Errorf("%v, %s %+v: %v, want allowed", id, name, c, err)
	case !want && err == nil:
		t.Errorf("%v, %s %+v: allowed", id, name, c)
	case !want && id == noIdentity && transport.CodeOf(err) != transport.CodeUnauthenticated:
		t.Errorf("%v, %s: %v, want code unauthenticated", id, name, err)
	case !want && id != noIdentity && transport.CodeOf(err) != transport.CodeDenied:
		t.Errorf("%v, %s: %v, want code denied", id, name, err)
	}
}

func TestAuthorize_EveryCallByEveryRoleInItsOwnScope(t *testing.T) {
	for name, c := range calls("me", "me") {
		for _, id := range everyone {
			check(t, id, name, c, allowed(name, id))
		}
	}
	for name := range may {
		if _, ok := calls("", "")[name]; !ok && name != authz.Subscribe+" spec" && name != authz.Subscribe+" status" {
			t.Errorf("%q is allowed and not walked", name)
		}
	}
}

func TestAuthorize_KeepsClientsInTheirScope(t *testing.T) {
	for name, c := range calls("foreign", "foreign") {
		for _, id := range everyone {
			check(t, id, name, c, c.Method != authz.Publish && allowed(name, id))
		}
	}
	// Only the caller's own name is checked. An agent's source attribute is its agent id, and a source publishes
	// for many clusters.
	for name, c := range calls("me", "foreign") {
		check(t, agent, name, c, allowed(name, agent))
		check(t, source, name, c, c.Method != authz.Publish && allowed(name, source))
	}
	for name, c := range calls("foreign", "me") {
		check(t, source, name, c, allowed(name, source))
		check(t, agent, name, c, c.Method != authz.Publish && allowed(name, agent))
	}
	// No identity acts for a cluster or source without a name.
	for name, c := range calls("", "") {
		for _, id := range everyone {
			check(t, id, name, c, c.Method != authz.Publish && allowed(name, id))
		}
	}
}

func TestAuthorize_NamespaceAgreesWithCluster(t *testing.T) {
	for name, c := range calls("me", "me") {
		for _, id := range everyone {
			c.Namespace = "me"
			check(t, id, name, c, allowed(name, id))
			c.Namespace = "other"
			check(t, id, name, c, c.Method != authz.Publish && allowed(name, id))
		}
	}
}

func TestAuthorize_Subscribe(t *testing.T) {
	for _, sub := range []codec.Subresource{codec.Spec, codec.Status} {
		name := authz.Subscribe + " " + string(sub)
		for _, claim := range []struct{ cluster, source string }{{"me", ""}, {"", "me"}, {"me", "me"}, {"foreign", ""}, {"", "foreign"}, {"", ""}} {
			c := authz.Call{
				Method: authz.Subscribe, Cluster: claim.cluster, Source: claim.source,
				Type: codec.EventType{DataType: codec.ManifestBundles, Subresource: sub},
			}
			for _, id := range everyone {
				own := id == agent && claim.cluster == "me" && claim.source == "" ||
					id == source && claim.source == "me" && claim.cluster == ""
				check(t, id, name, c, own && allowed(name, id))
			}
		}
	}
}

func TestAuthorize_UnknownDataType(t *testing.T) {
	other := codec.DataType{Group: "g", Version: "v1", Resource: "r"}
	for _, id := range everyone {
		for _, sub := range []codec.Subresource{codec.Spec, codec.Status} {
			for _, a := range []codec.Action{codec.UpdateRequest, codec.ResyncRequest} {
				c := authz.Call{Method: authz.Publish, Cluster: "me", Source: "me", Type: codec.EventType{DataType: other, Subresource: sub, Action: a}}
				check(t, id, "publish of another type", c, false)
			}
			c := authz.Call{Method: authz.Subscribe, Cluster: "me", Type: codec.EventType{DataType: other, Subresource: sub}}
			check(t, id, "subscribe to another type", c, false)
		}
	}
}

func TestClaimed_IsTheAllowedCaller(t *testing.T) {
	for name, c := range calls("cluster", "src") {
		id := authz.Claimed(c)
		switch {
		case c.RawType == codec.TypeAck: // both roles may send it; only that of an agent names a cluster
			other := c
			other.Cluster = ""
			if got := authz.Claimed(other); id != (identity.Identity{Role: identity.Agent, Name: "cluster"}) ||
				got != (identity.Identity{Role: identity.Source, Name: "src"}) {
				t.Errorf("%s: claims to be %v, and %v without a cluster", name, id, got)
			}
		case c.Method == authz.Publish && allowed(name, source) && id != identity.Identity{Role: identity.Source, Name: "src"}:
			t.Errorf("%s: claims to be %v", name, id)
		case c.Method == authz.Publish && allowed(name, agent) && id != identity.Identity{Role: identity.Agent, Name: "cluster"}:
			t.Errorf("%s: claims to be %v", name, id)
		}
	}
	if got := authz.Claimed(authz.Call{Method: authz.Subscribe, Source: "src"}); got.Role != identity.Source {
		t.Errorf("subscribing source claims to be %v", got)
	}
	if got := authz.Claimed(authz.Call{Method: authz.Subscribe, Cluster: "c"}); got.Role != identity.Agent {
		t.Errorf("subscribing agent claims to be %v", got)
	}
}

// TestCheckMethod checks that CheckMethod rejects a method exactly if Authorize rejects every call of it.
func TestCheckMethod(t *testing.T) {
	type pair struct {
		id     identity.Identity
		method string
	}
	some := map[pair]bool{}
	for name, c := range calls("me", "me") {
		for _, id := range everyone {
			some[pair{id, c.Method}] = some[pair{id, c.Method}] || allowed(name, id)
		}
	}
	for _, id := range everyone {
		some[pair{id, authz.Subscribe}] = id == agent || id == source || id == joining
		if id == joining {
			some[pair{id, authz.Publish}] = true // for other data types; see TestAuthorize_Registration
		}
	}
	for p, want := range some {
		err := authz.CheckMethod(p.id, p.method)
		if (err == nil) != want {
			t.Errorf("%v, %s: %v, want allowed: %v", p.id, p.method, err, want)
		}
		if other := authz.Authorize(p.id, authz.Call{Method: p.method}); err != nil && (other == nil || other.Error() != err.Error()) {
			t.Errorf("%v, %s: %v, and for the call %v", p.id, p.method, err, other)
		}
	}
}

// TestAuthorize_Registration checks every event of every data type of registration with every role. An agent
// requests for its own cluster, a bootstrap client for any; the other roles may not request.
func TestAuthorize_Registration(t *testing.T) {
	for _, d := range codec.RegistrationTypes() {
		row, _ := codec.Registration(d)
		for _, s := range []codec.Subresource{codec.Spec, codec.Status} {
			for _, a := range []codec.Action{codec.CreateRequest, codec.UpdateRequest, codec.DeleteRequest, codec.ResyncRequest, codec.ResyncResponse, "anything"} {
				e := codec.EventType{DataType: d, Subresource: s, Action: a}
				for _, cluster := range []string{"me", "other", "", "no name"} {
					c := authz.Call{Method: authz.Publish, Type: e, Cluster: cluster, Source: "me"}
					for _, id := range everyone {
						want := id == agent && row.MayPublish(e, false) && cluster == "me" ||
							id == joining && row.MayPublish(e, true) && (cluster == "me" || cluster == "other")
						checkAny(t, id, fmt.Sprintf("%s for %q", e, cluster), c, want)
					}
				}
			}
		}
		for _, cluster := range []string{"me", "other", "", "no name"} {
			for _, src := range []string{"", "me"} {
				for _, sub := range []codec.Subresource{codec.Spec, codec.Status} {
					c := authz.Call{Method: authz.Subscribe, Type: codec.EventType{DataType: d, Subresource: sub}, Cluster: cluster, Source: src}
					for _, id := range everyone {
						want := src == "" && (id == agent && row.Streamed && cluster == "me" ||
							id == joining && row.Joining && (cluster == "me" || cluster == "other"))
						checkAny(t, id, fmt.Sprintf("%s of %q, source %q", d, cluster, src), c, want)
					}
				}
			}
		}
	}
	for _, id := range everyone {
		for _, c := range []authz.Call{{Source: "me"}, {Source: "other"}, {Cluster: "me"}} {
			c.Method, c.Type = authz.Subscribe, codec.EventType{DataType: codec.Registrations, Subresource: codec.Status}
			checkAny(t, id, "requests", c, id == source && c.Source == "me")
		}
	}
}

// checkAny is check for calls in which an empty name gives CodeInvalid instead of CodeDenied.
func checkAny(t *testing.T, id identity.Identity, what string, c authz.Call, want bool) {
	t.Helper()
	err := authz.Authorize(id, c)
	if want != (err == nil) {
		t.Errorf("%v, %s: %v, want allowed: %v", id, what, err, want)
	}
	if code := transport.CodeOf(err); err != nil && code != transport.CodeDenied && code != transport.CodeUnauthenticated && code != transport.CodeInvalid {
		t.Errorf("%v, %s: %v", id, what, err)
	}
}

// TestClaimed_Registration checks that a peer of an insecure broker requests as the agent of the cluster.
func TestClaimed_Registration(t *testing.T) {
	for _, d := range codec.RegistrationTypes() {
		for _, a := range []codec.Action{codec.CreateRequest, codec.UpdateRequest, codec.ResyncRequest} {
			c := authz.Call{Method: authz.Publish, Cluster: "c", Source: "s", Type: codec.EventType{DataType: d, Subresource: codec.Spec, Action: a}}
			if got := authz.Claimed(c); got != (identity.Identity{Role: identity.Agent, Name: "c"}) {
				t.Errorf("%s: claims to be %v", c.Type, got)
			}
		}
	}
	if got := authz.Claimed(authz.Call{Method: authz.Publish, RawType: codec.TypeRegistrationAnswer, Source: "s"}); got.Role != identity.Source {
		t.Errorf("the peer that answers is %v", got)
	}
}
