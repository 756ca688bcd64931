package hubidentity

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/agent/drift"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
	"github.com/hawser-io/hawser/pkg/agent/workpolicy"
)

// ClaimsName is the name of the ConfigMap with the Claims of a cluster.
const ClaimsName = workpolicy.ClaimsName

// configMaps is the resource of ConfigMaps.
var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

// Registry stores the Claims of a cluster in a ConfigMap. Its methods may be called concurrently, also by
// several processes: a write succeeds only if the ConfigMap has not changed since it was read.
type Registry struct {
	// Objects accesses the managed cluster; Records lists its AppliedManifestWorks.
	Objects kubeclient.Client
	Records drift.Source
	// Namespace is the namespace of the agents.
	Namespace string
	Now       func() time.Time
}

// RecordsOf returns a source of the AppliedManifestWorks of a cluster.
func RecordsOf(metadata func(drift.Scope) drift.Source) drift.Source {
	return metadata(drift.Scope{GroupVersionResource: appliedwork.Resource})
}

func (r Registry) ref() kubeclient.Ref {
	return kubeclient.Ref{GroupVersionResource: configMaps, Namespace: r.Namespace, Name: ClaimsName}
}

// attempts bounds the attempts of a write with conflicts.
const attempts = 10

// Claims reads the Claims.
func (r Registry) Claims(ctx context.Context) (Claims, error) {
	b, _, err := r.load(ctx)
	return b, err
}

// load reads the Claims and their ConfigMap; nil if there is none.
func (r Registry) load(ctx context.Context) (Claims, *unstructured.Unstructured, error) {
	o, err := r.Objects.Get(ctx, r.ref())
	if apierrors.IsNotFound(err) {
		return Claims{}, nil, nil
	}
	if err != nil {
		return nil, nil, r.explain("read", err)
	}
	data, _, err := unstructured.NestedStringMap(o.Object, "data")
	if err != nil {
		return nil, nil, fmt.Errorf("ConfigMap %s/%s: %w", r.Namespace, ClaimsName, err)
	}
	b, err := parseClaims(data)
	if err != nil {
		return nil, nil, fmt.Errorf("ConfigMap %s/%s: %w; repair it, or remove the key: then the next agent of that hub claims the identity", r.Namespace, ClaimsName, err)
	}
	return b, o, nil
}

func (r Registry) explain(verb string, err error) error {
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("the cluster does not let this service account %s the ConfigMap %s/%s with the hub identities (deploy/agent/rbac.yaml grants it): %w", verb, r.Namespace, ClaimsName, err)
	}
	return fmt.Errorf("%s the ConfigMap %s/%s with the hub identities: %w", verb, r.Namespace, ClaimsName, err)
}

// parseClaims reads the data of a ConfigMap.
func parseClaims(data map[string]string) (Claims, error) {
	b := Claims{}
	for key, value := range data {
		var c Claim
		if err := json.Unmarshal([]byte(value), &c); err != nil {
			return nil, fmt.Errorf("key %s cannot be read: %w", key, err)
		}
		if err := readFormer([]byte(value), &c); err != nil {
			return nil, fmt.Errorf("key %s cannot be read: %w", key, err)
		}
		if c.Identity == "" || appliedwork.HubHash(c.Identity) != key {
			return nil, fmt.Errorf("key %s is not the hash of its identity %q", key, c.Identity)
		}
		b[key] = c
	}
	return b, nil
}

// data is the inverse of parseClaims.
func (b Claims) data() (map[string]any, error) {
	data := map[string]any{}
	for key, c := range b {
		value, err := json.Marshal(c)
		if err != nil {
			return nil, err
		}
		data[key] = string(value)
	}
	return data, nil
}

// save writes the Claims if their ConfigMap has not changed since it was read.
func (r Registry) save(ctx context.Context, b Claims, read *unstructured.Unstructured) error {
	data, err := b.data()
	if err != nil {
		return err
	}
	if read == nil {
		o := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap",
			"metadata": map[string]any{"namespace": r.Namespace, "name": ClaimsName, "labels": map[string]any{"app.kubernetes.io/managed-by": "hawser-agent"}},
			"data":     data,
		}}
		_, err = r.Objects.Create(ctx, configMaps, o)
		return err
	}
	o := read.DeepCopy()
	o.Object["data"] = data
	_, err = r.Objects.Update(ctx, configMaps, o)
	return err
}

// change applies f to the Claims and writes the result, if changed is true. It retries after a conflict. An
// error of f is returned after the write.
func (r Registry) change(ctx context.Context, f func(Claims) (next Claims, changed bool, err error)) error {
	for n := 1; ; n++ {
		b, read, err := r.load(ctx)
		if err != nil {
			return err
		}
		next, changed, outcome := f(b)
		if !changed {
			return outcome
		}
		err = r.save(ctx, next, read)
		switch {
		case err == nil:
			return outcome
		case n < attempts && (apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err)):
		default:
			return errors.Join(outcome, r.explain("write", err))
		}
	}
}

// Admit decides whether an agent may use an identity through a broker; see [Claims.Decide]. A refusal is a
// *RefusedError; any other error means that the decision failed. unclaimed has the unclaimed hubs with
// AppliedManifestWorks, if the identity is used for the first time and has none itself.
func (r Registry) Admit(ctx context.Context, identity string, t BrokerRef, trusted []string) (unclaimed map[string]int, err error) {
	first := false
	err = r.change(ctx, func(b Claims) (Claims, bool, error) {
		next, changed, err := b.Decide(identity, t, trusted, r.Now())
		first = err == nil && len(next) > len(b)
		return next, changed, err
	})
	if err != nil || !first {
		return nil, err
	}
	records, err := r.Tally(ctx)
	if err != nil || records[appliedwork.HubHash(identity)] > 0 {
		return nil, err
	}
	b, err := r.Claims(ctx)
	return b.Unclaimed(records), err
}

// Identify calls [Claims.Identify] with the state of the cluster.
func (r Registry) Identify(ctx context.Context, clusterName, broker string) (identity string, certain bool, err error) {
	b, err := r.Claims(ctx)
	if err != nil {
		return "", false, err
	}
	records, err := r.Tally(ctx)
	if err != nil {
		return "", false, err
	}
	return b.Identify(clusterName, broker, records)
}

// Tally returns the number of AppliedManifestWorks of Hawser agents by the hash in their names.
func (r Registry) Tally(ctx context.Context) (map[string]int, error) {
	tally := map[string]int{}
	err := r.each(ctx, func(m *metav1.PartialObjectMetadata) {
		if hash, _, ok := Split(m.Name); ok && m.Annotations[appliedwork.AnnotationWorkID] != "" {
			tally[hash]++
		}
	})
	return tally, err
}

// pageSize is the page size of lists of AppliedManifestWorks.
const pageSize = 500

func (r Registry) each(ctx context.Context, f func(*metav1.PartialObjectMetadata)) error {
	o := metav1.ListOptions{Limit: pageSize}
	for {
		list, err := r.Records.List(ctx, o)
		if err != nil {
			return fmt.Errorf("list AppliedManifestWorks: %w", err)
		}
		for i := range list.Items {
			f(&list.Items[i])
		}
		if o.Continue = list.Continue; o.Continue == "" {
			return nil
		}
	}
}

// Split splits the name of an AppliedManifestWork into the hash of the hub's identity and the name of the work.
// ok is false for other names.
func Split(name string) (hash, work string, ok bool) {
	const digits = 2 * sha256.Size
	if len(name) < digits+2 || name[digits] != '-' || !IsHash(name[:digits]) {
		return "", "", false
	}
	return name[:digits], name[digits+1:], true
}

// IsHash reports whether s looks like the hash of an identity.
func IsHash(s string) bool {
	return len(s) == 2*sha256.Size && strings.Trim(s, "0123456789abcdef") == ""
}

// LeaseName returns the name of the Lease of the agents that manage the same AppliedManifestWorks. hash is that
// of the hub identity. agentID "" means the hash.
func LeaseName(hash, agentID string) string {
	agentID = cmp.Or(agentID, hash)
	sum := sha256.Sum256([]byte(hash + "/" + agentID))
	return workpolicy.LeaseName(hex.EncodeToString(sum[:8]))
}

// Fingerprints returns the hashes of the certificates in a PEM file, in the form of BrokerRef.Roots. Other
// content is skipped.
func Fingerprints(pemFile []byte) []string {
	var prints []string
	for block, rest := pem.Decode(pemFile); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" {
			sum := sha256.Sum256(block.Bytes)
			prints = append(prints, hex.EncodeToString(sum[:]))
		}
	}
	return prints
}

// AgentIDs returns the ids of the agents that manage the AppliedManifestWorks of a hub.
func (r Registry) AgentIDs(ctx context.Context, hash string) ([]string, error) {
	ids := map[string]bool{}
	err := r.records(ctx, func(h string, rec *appliedwork.Record) {
		if h == hash {
			ids[rec.AgentID()] = true
		}
	})
	return slices.Sorted(maps.Keys(ids)), err
}

// Shared returns, by the hash of each hub, a text about the objects that it shares with other hubs: how many,
// and with which hub.
func (r Registry) Shared(ctx context.Context) (map[string]string, error) {
	owners := map[string]map[string]bool{}
	err := r.records(ctx, func(hash string, rec *appliedwork.Record) {
		for _, e := range rec.Entries() {
			if e.UID == "" {
				continue
			}
			if owners[e.UID] == nil {
				owners[e.UID] = map[string]bool{}
			}
			owners[e.UID][hash] = true
		}
	})
	if err != nil {
		return nil, err
	}
	count := map[string]map[string]int{}
	for _, hubs := range owners {
		for a := range hubs {
			for b := range hubs {
				if a == b {
					continue
				}
				if count[a] == nil {
					count[a] = map[string]int{}
				}
				count[a][b]++
			}
		}
	}
	shared := map[string]string{}
	for a, with := range count {
		var list []string
		for _, b := range slices.Sorted(maps.Keys(with)) {
			list = append(list, fmt.Sprintf("%d with %s", with[b], b[:12]))
		}
		shared[a] = strings.Join(list, ", ")
	}
	return shared, nil
}

// records calls f for all AppliedManifestWorks of hubs.
func (r Registry) records(ctx context.Context, f func(hash string, rec *appliedwork.Record)) error {
	var names []string
	err := r.each(ctx, func(m *metav1.PartialObjectMetadata) { names = append(names, m.Name) })
	if err != nil {
		return err
	}
	store := appliedwork.Store{Objects: r.Objects}
	for _, name := range names {
		hash, _, ok := Split(name)
		if !ok {
			continue
		}
		rec, err := store.Load(ctx, name)
		if err != nil {
			return err
		}
		if rec != nil {
			f(hash, rec)
		}
	}
	return nil
}
