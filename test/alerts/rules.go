// Package alerts reads the rules of deploy/monitoring for the tests of the rules. The tests in this directory
// run promtool with them, and test/e2e/alerts a Prometheus.
package alerts

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"sigs.k8s.io/yaml"
)

// Programs are the programs that have rules.
var Programs = []string{"broker", "hub-source", "agent"}

// Rules are the rules of one program, in the form that Prometheus reads.
type Rules struct {
	Groups []Group `json:"groups"`
}

// Group is a group of rules.
type Group struct {
	Name  string `json:"name"`
	Rules []Rule `json:"rules"`
}

// Rule is an alert.
type Rule struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// Load reads the rules of a program from the source tree at root.
func Load(root, program string) (Rules, error) {
	path := filepath.Join(root, "deploy", "monitoring", program, "rules.yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		return Rules{}, err
	}
	var o struct {
		APIVersion string         `json:"apiVersion"`
		Kind       string         `json:"kind"`
		Metadata   map[string]any `json:"metadata"`
		Spec       Rules          `json:"spec"`
	}
	if err := yaml.UnmarshalStrict(text, &o); err != nil {
		return Rules{}, fmt.Errorf("%s: %w", path, err)
	}
	return o.Spec, nil
}

// All returns all rules.
func (r Rules) All() (all []Rule) {
	for _, g := range r.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

// Map returns rules changed by f.
func (r Rules) Map(f func(Rule) Rule) Rules {
	var n Rules
	for _, g := range r.Groups {
		changed := Group{Name: g.Name}
		for _, rule := range g.Rules {
			changed.Rules = append(changed.Rules, f(rule))
		}
		n.Groups = append(n.Groups, changed)
	}
	return n
}

// ShortenFor returns rules whose waiting time ("for") is divided by n. Nothing else changes.
func (r Rules) ShortenFor(n int) (Rules, error) {
	var failed error
	faster := r.Map(func(rule Rule) Rule {
		if rule.For == "" {
			return rule
		}
		d, err := time.ParseDuration(rule.For)
		if err != nil {
			failed = fmt.Errorf("%s: %w", rule.Alert, err)
		}
		rule.For = fmt.Sprintf("%dms", (d / time.Duration(n)).Milliseconds())
		return rule
	})
	return faster, failed
}

// Write writes rules to a file for Prometheus.
func (r Rules) Write(path string) error {
	text, err := yaml.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}
