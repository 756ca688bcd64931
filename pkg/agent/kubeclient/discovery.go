package kubeclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

// retryAfter bounds how often one group and version is read again because a kind is missing in it. It is short
// enough for a custom resource that waits for its definition in the same work.
const retryAfter = 250 * time.Millisecond

// discoveryCache implements discovery on demand. It reads the resources of one group and version when one of
// its kinds is needed, not those of the whole cluster.
type discoveryCache struct {
	fetch func(ctx context.Context, path string, into any) error
	now   func() time.Time

	flight singleflight.Group
	mu     sync.Mutex
	known  map[schema.GroupVersion]versionKinds
	// requestedAt has the start times of pending requests.
	requestedAt map[schema.GroupVersion]time.Time
}

type versionKinds struct {
	byKind map[string]Resource
	read   time.Time
}

func newKinds(cfg *rest.Config, hc *http.Client) (*discoveryCache, error) {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	c := rest.CopyConfig(cfg)
	c.GroupVersion = &schema.GroupVersion{}
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	rc, err := rest.UnversionedRESTClientForConfigAndClient(c, hc)
	if err != nil {
		return nil, err
	}
	fetch := func(ctx context.Context, path string, into any) error {
		b, err := rc.Get().AbsPath(path).SetHeader("Accept", runtime.ContentTypeJSON).Do(ctx).Raw()
		if err != nil {
			return unreached(ctx, err)
		}
		return json.Unmarshal(b, into)
	}
	return &discoveryCache{fetch: fetch, now: time.Now, known: map[schema.GroupVersion]versionKinds{}, requestedAt: map[schema.GroupVersion]time.Time{}}, nil
}

func (k *discoveryCache) resolve(ctx context.Context, gvk schema.GroupVersionKind) (Resource, error) {
	gv := gvk.GroupVersion()
	k.mu.Lock()
	v, have := k.known[gv]
	k.mu.Unlock()
	r, ok := v.byKind[gvk.Kind]
	if !ok && (!have || k.now().Sub(v.read) >= retryAfter) {
		var err error
		if v, err = k.read(ctx, gv); err != nil {
			return Resource{}, fmt.Errorf("ask the cluster for kind %s: %w", gvk.Kind, err)
		}
		r, ok = v.byKind[gvk.Kind]
	}
	if !ok {
		return Resource{}, &NoKindError{Kind: gvk}
	}
	return r, nil
}

// read reads a group version from the server, once for concurrent callers. No caller waits longer than
// kindsPatience after the first of them.
func (k *discoveryCache) read(ctx context.Context, gv schema.GroupVersion) (versionKinds, error) {
	patience := kindsPatience
	k.mu.Lock()
	if requestedAt, waits := k.requestedAt[gv]; waits {
		patience -= k.now().Sub(requestedAt)
	}
	k.mu.Unlock()
	defer note(ctx, "kinds of "+gv.String())()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	ch := k.flight.DoChan(gv.String(), func() (any, error) {
		// The answer also serves other callers, so it does not end with this one.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		k.mu.Lock()
		k.requestedAt[gv] = k.now()
		k.mu.Unlock()
		v, err := k.list(ctx, gv)
		k.mu.Lock()
		delete(k.requestedAt, gv)
		k.mu.Unlock()
		if err != nil {
			return nil, err
		}
		k.remember(gv, v)
		return v, nil
	})
	select {
	case <-ctx.Done():
		return versionKinds{}, ctx.Err()
	case <-timer.C:
		return versionKinds{}, &SlowError{What: "the kinds of " + gv.String(), Fails: true}
	case r := <-ch:
		if r.Err != nil {
			return versionKinds{}, r.Err
		}
		return r.Val.(versionKinds), nil
	}
}

// forget drops all answers, so that they are read again.
func (k *discoveryCache) forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	clear(k.known)
}

// list reads one group and version; an absent one has no kinds.
func (k *discoveryCache) list(ctx context.Context, gv schema.GroupVersion) (versionKinds, error) {
	v := versionKinds{byKind: map[string]Resource{}, read: k.now()}
	var l metav1.APIResourceList
	switch err := k.fetch(ctx, versionPath(gv), &l); {
	case apierrors.IsNotFound(err):
		return v, nil
	case err != nil:
		return v, err
	}
	for _, r := range l.APIResources {
		if _, twice := v.byKind[r.Kind]; twice || strings.Contains(r.Name, "/") { // a subresource
			continue
		}
		v.byKind[r.Kind] = Resource{GroupVersionResource: gv.WithResource(r.Name), Kind: r.Kind, Namespaced: r.Namespaced}
	}
	return v, nil
}

// remember stores an answer. Empty answers are dropped after retryAfter, so that works with many invented
// groups do not fill the memory.
func (k *discoveryCache) remember(gv schema.GroupVersion, v versionKinds) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for other, o := range k.known {
		if len(o.byKind) == 0 && v.read.Sub(o.read) >= retryAfter {
			delete(k.known, other)
		}
	}
	k.known[gv] = v
}

func (k *discoveryCache) locate(ctx context.Context, gr schema.GroupResource) (Resource, error) {
	versions, err := k.versions(ctx, gr.Group)
	if err != nil {
		return Resource{}, fmt.Errorf("ask the cluster for the versions of %s: %w", gr, err)
	}
	for _, version := range versions {
		v, err := k.read(ctx, schema.GroupVersion{Group: gr.Group, Version: version})
		if err != nil {
			return Resource{}, fmt.Errorf("ask the cluster for %s: %w", gr, err)
		}
		for _, r := range v.byKind {
			if r.Resource == gr.Resource {
				return r, nil
			}
		}
	}
	return Resource{}, &NotServedError{Resource: gr.WithVersion("")}
}

// versions returns the versions of a group, the preferred one first; none if the group does not exist.
func (k *discoveryCache) versions(ctx context.Context, group string) ([]string, error) {
	if group == "" {
		return []string{"v1"}, nil
	}
	var g metav1.APIGroup
	switch err := k.fetch(ctx, "/apis/"+group, &g); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	if g.Name != group {
		return nil, errors.New("the answer is about another group")
	}
	versions := []string{g.PreferredVersion.Version}
	for _, v := range g.Versions {
		if v.Version != versions[0] {
			versions = append(versions, v.Version)
		}
	}
	return versions, nil
}

func versionPath(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "/api/" + gv.Version
	}
	return "/apis/" + gv.Group + "/" + gv.Version
}
