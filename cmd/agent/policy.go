package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/pkg/agent"
	"github.com/hawser-io/hawser/pkg/agent/workpolicy"
)

// policyFile is the policy of the cluster's owner for the works of one hub.
type policyFile struct {
	path, hub string
	follow    func(workpolicy.Rules)
	log       *slog.Logger

	text []byte
	// bad is why the current file cannot be used; the previous policy then stays in force.
	bad atomic.Pointer[error]
}

// lookAtPolicy is the poll interval of the policy file.
const lookAtPolicy = 5 * time.Second

// openPolicy applies the policy file to the agent. The file must be valid; without a file it returns nil.
func (c *config) openPolicy(hub string, a *agent.Agent, log *slog.Logger) (*policyFile, error) {
	if c.policyFile == "" {
		return nil, nil
	}
	p := &policyFile{path: c.policyFile, hub: hub, follow: a.Follow, log: log}
	_, err := p.read()
	return p, err
}

// read applies the policy file to the agent, if it has changed.
func (p *policyFile) read() (changed bool, err error) {
	text, err := os.ReadFile(p.path)
	if err != nil {
		return false, fmt.Errorf("policy-file: %w", err)
	}
	if p.text != nil && bytes.Equal(text, p.text) {
		return false, nil
	}
	policy, err := workpolicy.ParsePolicy(text)
	var rules workpolicy.Rules
	if err == nil {
		rules, err = policy.For(p.hub)
	}
	if err != nil {
		return false, fmt.Errorf("policy-file %s: %w", p.path, err)
	}
	p.text = text
	p.follow(rules)
	return true, nil
}

// look reads the file again. An unusable file is logged once.
func (p *policyFile) look(ctx context.Context) {
	changed, err := p.read()
	if changed {
		p.log.InfoContext(ctx, "the policy file has changed", "file", p.path)
	}
	if err == nil {
		p.bad.Store(nil)
		return
	}
	if before := p.bad.Load(); before == nil || (*before).Error() != err.Error() {
		p.log.ErrorContext(ctx, "the policy file is invalid; the previous policy stays in force", "error", err)
	}
	p.bad.Store(&err)
}

// watch calls look periodically until ctx ends.
func (p *policyFile) watch(ctx context.Context) error {
	taskgroup.Every(ctx, lookAtPolicy, func() { p.look(ctx) })
	return nil
}

// ready returns why the file cannot be used as it is.
func (p *policyFile) ready() error {
	if p == nil {
		return nil
	}
	if bad := p.bad.Load(); bad != nil {
		return fmt.Errorf("%w; the previous policy stays in force", *bad)
	}
	return nil
}

// accountOf returns the service account in the bearer token, or zero if it is none.
func accountOf(r *rest.Config) types.NamespacedName {
	token := r.BearerToken
	if b, err := os.ReadFile(r.BearerTokenFile); err == nil {
		token = string(bytes.TrimSpace(b))
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return types.NamespacedName{}
	}
	claims, err := base64.RawURLEncoding.DecodeString(parts[1])
	var subject struct {
		Sub string `json:"sub"`
	}
	if err != nil || json.Unmarshal(claims, &subject) != nil {
		return types.NamespacedName{}
	}
	account, is := strings.CutPrefix(subject.Sub, "system:serviceaccount:")
	namespace, name, whole := strings.Cut(account, ":")
	if !is || !whole {
		return types.NamespacedName{}
	}
	return types.NamespacedName{Namespace: namespace, Name: name}
}
