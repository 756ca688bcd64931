package cmdline

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// FeatureGates are the feature gates of a program: switches by name, as --feature-gates=A=true,B=false or, in a
// file, {A: true}. It implements pflag.Value and json.Unmarshaler; gates that are not named keep their value.
// The zero FeatureGates has no names.
type FeatureGates struct {
	defaults, set map[string]bool
}

// NewFeatureGates returns the gates with these names and defaults.
func NewFeatureGates(defaults map[string]bool) FeatureGates {
	return FeatureGates{defaults: defaults, set: map[string]bool{}}
}

// Enabled reports whether a gate is enabled. It panics for a name that the program does not have.
func (g *FeatureGates) Enabled(name string) bool {
	value, known := g.defaults[name]
	if !known {
		panic("cmdline: no feature gate " + name)
	}
	if set, ok := g.set[name]; ok {
		return set
	}
	return value
}

// Usage returns the help of the flag: each gate with its default.
func (g *FeatureGates) Usage() string {
	names := make([]string, 0, len(g.defaults))
	for _, name := range slices.Sorted(maps.Keys(g.defaults)) {
		names = append(names, fmt.Sprintf("%s (default %t)", name, g.defaults[name]))
	}
	return "switch behaviour on or off, as NAME=true,OTHER=false. The gates are " + strings.Join(names, ", ")
}

// String returns the gates that were set, in the form that Set accepts.
func (g *FeatureGates) String() string {
	pairs := make([]string, 0, len(g.set))
	for _, name := range slices.Sorted(maps.Keys(g.set)) {
		pairs = append(pairs, fmt.Sprintf("%s=%t", name, g.set[name]))
	}
	return strings.Join(pairs, ",")
}

// Type returns the name of the value in the help of the flag.
func (g *FeatureGates) Type() string { return "NAME=true|false,..." }

// Set reads "A=true,B=false".
func (g *FeatureGates) Set(s string) error {
	for pair := range strings.SplitSeq(s, ",") {
		if pair = strings.TrimSpace(pair); pair == "" {
			continue
		}
		name, text, ok := strings.Cut(pair, "=")
		value, err := strconv.ParseBool(text)
		if !ok || err != nil {
			return fmt.Errorf("feature gate %q: write it as NAME=true or NAME=false", pair)
		}
		if err := g.put(name, value); err != nil {
			return err
		}
	}
	return nil
}

// UnmarshalJSON reads {"A": true}.
func (g *FeatureGates) UnmarshalJSON(b []byte) error {
	var values map[string]bool
	if err := json.Unmarshal(b, &values); err != nil {
		return fmt.Errorf("feature gates: write them as {NAME: true, OTHER: false}: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if err := g.put(name, values[name]); err != nil {
			return err
		}
	}
	return nil
}

func (g *FeatureGates) put(name string, value bool) error {
	if _, known := g.defaults[name]; !known {
		return fmt.Errorf("there is no feature gate %q: use one of %s", name, strings.Join(slices.Sorted(maps.Keys(g.defaults)), ", "))
	}
	g.set[name] = value
	return nil
}
