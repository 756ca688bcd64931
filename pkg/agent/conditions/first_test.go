package conditions_test

import (
	"errors"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/conditions"
)

// What a work says of the first manifest that failed, behind the text that tools compare.
func TestNext_SaysWhichManifestFailedFirst(t *testing.T) {
	boom := errors.New("boom")
	role := workv1.ManifestResourceMeta{Ordinal: 1, Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "ClusterRole", Name: "r"}
	nameless := workv1.ManifestResourceMeta{Ordinal: 1}
	for name, c := range map[string]struct {
		second             conditions.Manifest
		applied, available string
	}{
		"an object without a namespace": {
			second:    conditions.Manifest{Meta: role, Presence: conditions.Present, ApplyErr: boom},
			applied:   "Failed to apply manifest work: 1 of 2 manifests failed, the first is ClusterRole r: boom",
			available: "All resources are available",
		},
		"no object at all": {
			second:    conditions.Manifest{Meta: nameless, Presence: conditions.Unidentified, ApplyErr: boom},
			applied:   "Failed to apply manifest work: 1 of 2 manifests failed, the first is the one with ordinal 1: boom",
			available: "1 of 2 resources have unknown status, the first is the one with ordinal 1: boom",
		},
		"another reason": {
			second:    conditions.Manifest{Meta: configMap(1, "b"), Presence: conditions.Present, ApplyErr: &conditions.IgnoreFieldsError{Err: boom}},
			applied:   "Failed to apply manifest work: 1 of 2 manifests failed, the first is ConfigMap default/b: Failed to process ignoreFields: boom",
			available: "All resources are available",
		},
		"not there, for a reason that nobody knows": {
			second:    conditions.Manifest{Meta: configMap(1, "b"), Presence: conditions.Absent},
			applied:   "Apply manifest work complete",
			available: "1 of 2 resources are not available, the first is ConfigMap default/b",
		},
		"it cannot be read": {
			second:    conditions.Manifest{Meta: configMap(1, "b"), Presence: conditions.Unreadable, ReadErr: errors.New("no answer")},
			applied:   "Apply manifest work complete",
			available: "1 of 2 resources have unknown status, the first is ConfigMap default/b: Failed to fetch resource: no answer",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := conditions.Next(workv1.ManifestWorkStatus{}, 7, []conditions.Manifest{present(configMap(0, "a")), c.second}, t0)
			diff(t, []string{c.applied, c.available}, []string{got.Conditions[0].Message, got.Conditions[1].Message})
		})
	}
}

// An endless text of a manifest is one line of its work.
func TestNext_WhatAWorkSaysIsShort(t *testing.T) {
	failing := conditions.Manifest{Meta: configMap(0, "a"), Presence: conditions.Absent, ApplyErr: errors.New(strings.Repeat("é", 5000))}
	got := conditions.Next(workv1.ManifestWorkStatus{}, 7, []conditions.Manifest{failing}, t0)
	for _, c := range got.Conditions {
		if n := len(c.Message); n < 1000 || n > 1024 || !strings.HasSuffix(c.Message, "é… (truncated)") {
			t.Errorf("%s says %d bytes: %.80s", c.Type, n, c.Message)
		}
	}
}

// An object that is gone while its work is deleted is no failure.
func TestDeleting_NamesNoObject(t *testing.T) {
	first := conditions.Next(workv1.ManifestWorkStatus{}, 1, []conditions.Manifest{present(configMap(0, "a"))}, t0)
	got := conditions.Deleting(first, 1, []conditions.Manifest{{Meta: configMap(0, "a"), Presence: conditions.Absent}}, t0)
	diff(t, one("Available", metav1.ConditionFalse, "ResourcesNotAvailable", "1 of 1 resources are not available", 1, s0), got.Conditions[1])
}
