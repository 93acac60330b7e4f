package stalltest

import "time"

// servingKinds are servers and pipelines: idle is what they do when nobody asks.
func servingKinds() []Kind {
	day := func(busy Load, quiet Phase) Phase {
		quiet.For = 8 * hour
		return loop(0, work("day", 16*hour, busy), quiet)
	}
	return []Kind{
		job("llm-decode", "tokens of full batches, without a pause", "recording infer_decode",
			work("load", 2*minute, open(60).host(2, 20e3).disk(900e6, 0).pcie(900e6, 1e6)), work("serve", 0, decode(72, 1))).
			in(deployment()),
		job("server-bursts", "ten small batches, then a pause of 0.8 s", "recording infer_bursty",
			loop(0, work("batches", 20*time.Millisecond, prefill(2.2)),
				idle("pause", 800*time.Millisecond, open(2.2).cpu(0.5)))).in(deployment()),
		job("vllm-idle-night", "weights are loaded, the engine's loop polls on one CPU, no request for eight hours",
			"github.com/vllm-project/vllm/issues/16968", day(decode(74, 0.5), idle("night", 0, open(74).cpu(1.05)))).
			in(deployment()),
		job("vllm-tp2-spins-idle",
			"with two devices the worker waits for the next request in a broadcast: full utilization, nothing to do, for days",
			"github.com/vllm-project/vllm/issues/12664",
			loop(0, work("request", 20*second, decode(74, 0.9).links(30e9, 0).cpu(3)), Phase{
				Name: "no request", For: 3 * hour,
				Spread: 0.7, Truth: Idle, Load: spin(74, 16).cpu(2.1),
			})).in(deployment()).devices(2),
		job("glm-broadcast", "ranks wait for the next prompt in a broadcast at 66 W of a V100, rank 0 idles",
			"github.com/zai-org/GLM-130B/issues/32", loop(0, work("prompt", 40*second, decode(20, 0.9).links(10e9, 0)),
				Phase{Name: "no prompt", For: 70 * minute, Spread: 0.5, Truth: Idle, Load: spin(20, 16).cpu(8)})).in(onePod()).
			devices(8).on(V100(), NVMLOnly),
		job("embeddings-hourly", "a cron inside of the pod embeds for three minutes each hour", "reasoning",
			loop(0, work("embed", 3*minute, prefill(6)), idle("until the next hour", 57*minute, open(6)))).in(deployment()).
			on(L4(), NVMLOnly),
		job("disaggregated-prefill", "prompts come in waves, the cache goes out over RDMA", "reasoning",
			loop(0, work("prompts", 4*second, prefill(70).links(0, 2e9)).spread(0.6),
				idle("no prompt", 11*minute, open(70).cpu(1.1)).spread(0.8))).in(deployment()),
		job("nvenc-transcoding", "decoder and encoder work, the SMs do almost nothing", "reasoning",
			work("transcode", 0, transcode())).on(L4(), DCGMDefault).in(deployment()),
		job("nvenc-transcoding-utilization", "the same where nothing but utilization is measured", "reasoning",
			work("transcode", 0, transcode())).on(L4(), UtilizationOnly).in(deployment()),
		job("jpeg-thumbnails", "the JPEG engine decodes, a scaling kernel follows", "reasoning",
			loop(0, work("folder", 9*minute, thumbnails()).spread(0.4),
				work("list the bucket", 2*minute, open(3).host(0.5, 900).net(300e3, 40e3)))).in(deployment()),
		job("whisper-live", "a stream of speech uses 5 % all day", "reasoning",
			loop(0, work("chunk", 100*time.Millisecond, decode(5, 0.9)), idle("next chunk", 1900*time.Millisecond,
				open(5).cpu(0.2)))).on(T4(), UtilizationOnly).in(deployment()),
		job("amd-idle-model-resident",
			"amdgpu reports 100 % busy and boosts the clock as long as a compute context is resident, with nothing running",
			"github.com/ROCm/legacy-rocm-build/issues/5706, github.com/tobocop2/lilbee/issues/675",
			loop(0, work("answer", 30*second, decode(24, 0.9)), Phase{
				Name: "no request", For: 4 * hour, Spread: 0.4,
				Truth: Idle, Load: phantom(24),
			})).on(R9700(), AMDSysfs).in(deployment()),
		job("amd-llm-training", "training on MI300X with the two shares of sysfs", "reasoning",
			loop(0, work("steps", 25*minute, trainBF16(150).links(50e9, 0)),
				work("checkpoint", 2*minute, open(150).host(1, 60e3).disk(0, 700e6)))).on(MI300X(), AMDSysfs),
		job("amd-fp64-solver", "registers and local memory only: mem_busy stays 0", "reasoning", work("solve", 0, mcFP64())).
			on(MI300X(), AMDSysfs),
		job("ollama-unloads", "after five minutes without a request the model is unloaded and the context closed",
			"reasoning", loop(0, work("load", 8*second, open(5).host(1, 30e3).disk(800e6, 0).pcie(800e6, 1e6)),
				work("chat", 25*second, decode(8, 0.8)).spread(0.6), idle("keeps the model", 5*minute, open(8)),
				idle("unloaded", 40*minute, rest()).spread(0.8))).on(L4(), NVMLOnly).in(deployment()),
		job("work-queue-in-kernel",
			"a persistent kernel polls a queue in the device's memory; a task comes each seven minutes", "reasoning",
			loop(0, work("task", 9*second, mcFP32()).spread(0.5), Phase{
				Name: "polls the queue", For: 7 * minute, Spread: 0.6,
				Truth: Idle, Load: spin(4, 132).cpu(0.3).net(2e3, 2e3),
			})).in(deployment()),
	}
}

func transcode() Load {
	l := open(2.5).host(1.5, 200).disk(4e6, 2e6).pcie(9e6, 5e6)
	l.Busy, l.SM, l.Occupancy, l.Decoder, l.Encoder, l.DRAM, l.Noise = 0.04, 0.01, 0.003, 0.55, 0.72, 0.06, 0.05
	return l
}

func thumbnails() Load {
	l := open(3).host(2, 900).net(35e6, 9e6).pcie(36e6, 12e6)
	l.Busy, l.SM, l.Occupancy, l.FP32, l.JPEG, l.DRAM, l.Noise = 0.06, 0.02, 0.008, 0.003, 0.65, 0.03, 0.1
	return l
}

// phantom is a resident context that its driver reports as busy.
func phantom(memoryGiB float64) Load {
	l := open(memoryGiB)
	l.Busy = 1
	return l
}
