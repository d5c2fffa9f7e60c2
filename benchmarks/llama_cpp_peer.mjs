// The llama.cpp side of real_models.py, through node-llama-cpp: one step for each line, as side_by_side.py asks.
//
//     node llama_cpp_peer.mjs FOLDER-OF-NODE-LLAMA-CPP MODEL.gguf CASES.json THREADS

import fs from "node:fs";
import path from "node:path";
import readline from "node:readline";
import { pathToFileURL } from "node:url";

const [folder, modelPath, casesPath, threads] = process.argv.slice(2);
const home = path.join(folder, "node_modules", "node-llama-cpp");
const { getLlama, LlamaLogLevel } = await import(pathToFileURL(path.join(home, "dist", "index.js")).href);
const version = JSON.parse(fs.readFileSync(path.join(home, "package.json"))).version;
const cases = JSON.parse(fs.readFileSync(casesPath));

const llama = await getLlama({
    gpu: false, build: "never", maxThreads: Number(threads), logLevel: LlamaLogLevel.error, progressLogs: false,
});
const model = await llama.loadModel({ modelPath });

function send(message) {
    fs.writeSync(1, `RESULT ${JSON.stringify(message)}\n`);
}

function peakMb() {
    return Number(/VmHWM:\s+(\d+)/.exec(fs.readFileSync("/proc/self/status", "utf8"))[1]) / 1024;
}

// The bytes of weights that a token reads: all but the rows of an embedding that is not the output layer, too.
function weightBytes() {
    const info = model.fileInfo;
    const tensors = [...info.fullTensorInfo].sort((one, other) => Number(one.offset) - Number(other.offset));
    const dataBytes = fs.statSync(modelPath).size - Number(info.tensorInfoSize ?? 0) - Number(info.metadataSize ?? 0);
    const isUntied = tensors.some((tensor) => tensor.name === "output.weight");
    return tensors.reduce((total, tensor, index) => {
        const end = index + 1 < tensors.length ? Number(tensors[index + 1].offset) : dataBytes;
        return total + (isUntied && tensor.name === "token_embd.weight" ? 0 : end - Number(tensor.offset));
    }, 0);
}

// A context for the rows of a case, whose sequences are kept for the next step of the case.
let kept = { name: null };
async function sequencesOf(one) {
    if (kept.name !== one.name) {
        await kept.context?.dispose();
        const longest = Math.max(...one.prompts.map((prompt) => prompt.length)) + Math.max(...one.lengths);
        const context = await model.createContext({
            sequences: one.rows, contextSize: longest, batchSize: Math.max(512, one.rows), threads: Number(threads),
        });
        kept = { name: one.name, context, sequences: Array.from({ length: one.rows }, () => context.getSequence()) };
    }
    await Promise.all(kept.sequences.map((sequence) => sequence.clearHistory()));
    return kept.sequences;
}

async function sample(one, seed) {
    const sequences = await sequencesOf(one);
    const started = process.hrtime.bigint(), cpu = process.cpuUsage();
    let next = 0, tokens = 0;
    async function serve(sequence) {
        while (next < one.lengths.length) {
            const request = next++;
            let drawn = 0;
            await sequence.clearHistory();
            const answer = sequence.evaluate(one.prompts[Math.floor(request / one.group_size)], {
                temperature: 1, topK: 0, topP: 1, minP: 0, seed: seed * 100003 + request, yieldEogToken: true,
            });
            for await (const _ of answer)
                if (++drawn === one.lengths[request])
                    break;
            tokens += drawn;
        }
    }
    await Promise.all(sequences.map(serve));
    const spent = process.cpuUsage(cpu);
    return {
        seconds: Number(process.hrtime.bigint() - started) / 1e9,
        cpu: (spent.user + spent.system) / 1e6,
        tokens,
        peak_mb: peakMb(),
    };
}

send({ version, build: llama.llamaCppRelease?.release, weight_bytes: weightBytes() });
let seed = 0;
for await (const line of readline.createInterface({ input: process.stdin }))
    send(await sample(cases[Number(line)], seed++));
process.exit(0);
