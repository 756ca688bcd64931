package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// agentUser is the user of the agent on its cluster, as in deploy/.
const agentUser = "system:serviceaccount:hawser:hawser-agent"

// auditPolicy logs only the requests of the agent, each once when it is answered.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- level: Metadata
  users: ["` + agentUser + `"]
`

// audit is the audit log of the kube-apiservers of a fleet.
type audit struct {
	path string
	read int // the offset up to which take has read
}

// newAudit returns the log and the flags with which a kube-apiserver writes it.
func newAudit(dir string) (*audit, []string, error) {
	a := &audit{path: filepath.Join(dir, "audit.log")}
	policy := filepath.Join(dir, "audit-policy.yaml")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		return nil, nil, err
	}
	return a, []string{"--audit-policy-file=" + policy, "--audit-log-path=" + a.path}, nil
}

// requests counts requests by "verb resource".
type requests map[string]int

func (r requests) total() (n int) {
	for _, c := range r {
		n += c
	}
	return n
}

// take returns the agent's requests since the last take, without watches. writing is the time from the start of
// the first write to the end of the last one, without Leases.
func (a *audit) take() (made requests, writing time.Duration, err error) {
	b, err := os.ReadFile(a.path)
	if err != nil {
		return nil, 0, err
	}
	b = b[a.read:]
	b = b[:bytes.LastIndexByte(b, '\n')+1] // the last line may be incomplete
	a.read += len(b)
	return countRequests(b)
}

// countRequests counts the lines of an audit log, see take.
func countRequests(lines []byte) (counts requests, writing time.Duration, err error) {
	counts = requests{}
	var first, last time.Time
	for line := range bytes.Lines(lines) {
		var e struct {
			Verb, RequestURI                         string
			User                                     struct{ Username string }
			ObjectRef                                *struct{ Resource, Subresource string }
			RequestReceivedTimestamp, StageTimestamp time.Time
		}
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, 0, fmt.Errorf("audit log: %w", err)
		}
		if e.Verb == "watch" || e.User.Username != agentUser {
			continue
		}
		what, _, _ := strings.Cut(e.RequestURI, "?")
		if o := e.ObjectRef; o != nil {
			if what = o.Resource; o.Subresource != "" {
				what += "/" + o.Subresource
			}
		}
		counts[e.Verb+" "+what]++
		if e.Verb == "get" || e.Verb == "list" || what == "leases" {
			continue
		}
		if at := e.RequestReceivedTimestamp; first.IsZero() || at.Before(first) {
			first = at
		}
		if e.StageTimestamp.After(last) {
			last = e.StageTimestamp
		}
	}
	return counts, last.Sub(first), nil
}
