package stalltest

import "time"

// job returns a kind on an H100 with full telemetry, in a pod of a Job without other members.
func job(name, why, source string, phases ...Phase) Kind {
	return Kind{Name: name, Why: why, Source: source, Model: H100(), Pod: oneJob(), Devices: 1, Phases: phases}
}

func (k Kind) on(m Model, t Telemetry) Kind {
	k.Model, k.Sees = m, t
	return k
}

func (k Kind) in(p Pod) Kind {
	k.Pod = p
	return k
}

func (k Kind) devices(n int) Kind {
	k.Devices = n
	return k
}

// work is a phase in which this part of the job works.
func work(name string, length time.Duration, l Load) Phase {
	return Phase{Name: name, For: length, Load: l}
}

// wait is a phase in which this part of the job waits for one that works.
func wait(name string, length time.Duration, others Others, l Load) Phase {
	return Phase{Name: name, For: length, Truth: Waits, Others: others, Load: l}
}

// idle is a phase in which there is nothing to do.
func idle(name string, length time.Duration, l Load) Phase {
	return Phase{Name: name, For: length, Truth: Idle, Load: l}
}

// hang is the last phase of a job that hangs, of which the others do something.
func hang(others Others, l Load) Phase {
	return Phase{Name: "hang", Truth: Hangs, Others: others, Load: l}
}

// loop repeats phases for a time, 0 for ever.
func loop(length time.Duration, phases ...Phase) Phase {
	return Phase{Name: "loop", For: length, Loop: phases}
}

// spread returns the phase with a length that varies.
func (p Phase) spread(share float64) Phase {
	p.Spread = share
	return p
}

func oneJob() Pod { return Pod{WorkloadKind: "Job", Completions: 1, Parallelism: 1, Members: 1} }

func onePod() Pod { return Pod{WorkloadKind: "Pod", Members: 1} }

func deployment() Pod { return Pod{WorkloadKind: "Deployment", Members: 1} }

func notebook() Pod {
	return Pod{WorkloadKind: "StatefulSet", Members: 1, Labels: map[string]string{"notebook-name": "alice"}}
}

func indexedJob(members int) Pod {
	return Pod{
		WorkloadKind: "Job", Completions: members, Parallelism: members, Members: members,
		Labels:      map[string]string{"batch.kubernetes.io/job-completion-index": "3"},
		Annotations: map[string]string{"batch.kubernetes.io/job-completion-index": "3"},
	}
}

func pyTorchJob(members int) Pod {
	return Pod{WorkloadKind: "PyTorchJob", Members: members, Labels: map[string]string{
		"training.kubeflow.org/job-name": "llm", "training.kubeflow.org/replica-type": "worker",
		"training.kubeflow.org/replica-index": "1",
	}}
}

func mpiJob(members int) Pod {
	return Pod{WorkloadKind: "MPIJob", Members: members, Labels: map[string]string{
		"training.kubeflow.org/job-name": "solver", "training.kubeflow.org/job-role": "worker",
	}}
}

func jobSet(members int) Pod {
	return Pod{WorkloadKind: "JobSet", Members: members, Labels: map[string]string{
		"jobset.sigs.k8s.io/jobset-name": "llm", "jobset.sigs.k8s.io/job-index": "1",
	}}
}

func leaderWorkerSet(members int) Pod {
	return Pod{
		WorkloadKind: "LeaderWorkerSet", Members: members,
		Labels: map[string]string{
			"leaderworkerset.sigs.k8s.io/name":         "llm",
			"leaderworkerset.sigs.k8s.io/worker-index": "1",
		},
		Annotations: map[string]string{"leaderworkerset.sigs.k8s.io/size": "2"},
	}
}

func rayCluster(members int) Pod {
	return Pod{WorkloadKind: "RayCluster", Members: members, Labels: map[string]string{
		"ray.io/cluster": "rl", "ray.io/node-type": "worker",
	}}
}
