package cli

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	sigsyaml "sigs.k8s.io/yaml"
)

// TestJobs_RunCommands: each Job of deploy/ runs a command of hawser with flags that it has.
func TestJobs_RunCommands(t *testing.T) {
	for _, file := range []string{"broker-backup/cronjob.yaml", "postgres-migration/job.yaml"} {
		data, err := os.ReadFile(filepath.Join(repository, "deploy", file))
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for d := yaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(data))); ; found++ {
			text := make([]byte, len(data)+1)
			n, err := d.Read(text)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			args := podOf(t, file, text[:n]).Containers[0].Args
			c, rest, err := newRoot(Env{}).Find(args)
			if err == nil {
				err = c.ParseFlags(rest)
			}
			if err != nil || !c.Runnable() {
				t.Errorf("deploy/%s runs hawser %v: %v", file, args, err)
			}
		}
		if found == 0 {
			t.Errorf("deploy/%s has no Job", file)
		}
	}
}

// podOf returns the pod of a Job or a CronJob.
func podOf(t *testing.T, file string, text []byte) corev1.PodSpec {
	t.Helper()
	var job batchv1.Job
	if err := sigsyaml.UnmarshalStrict(text, &job); err == nil && job.Kind == "Job" {
		return job.Spec.Template.Spec
	}
	var cron batchv1.CronJob
	if err := sigsyaml.UnmarshalStrict(text, &cron); err != nil {
		t.Fatalf("deploy/%s: %v", file, err)
	}
	return cron.Spec.JobTemplate.Spec.Template.Spec
}
